"""The endpoint's own metrics pages: read beside a level, compared with what the client saw. Knows nothing of agents."""
