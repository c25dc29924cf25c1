"""Quantiles and intervals: pure functions on numpy arrays."""
