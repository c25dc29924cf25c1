"""Agents: the closed loop, history, pacing, cache salt. Knows no SLOs and no search."""
