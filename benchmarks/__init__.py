"""Benchmarks anyone can run; each prints a table with ratios."""
