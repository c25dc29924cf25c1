"""Recorded sessions: model, reading and writing, validation, statistics, filler text, synthesis. Knows no network."""
