"""SLO expressions, tiers, and the verdict of a window. Knows nothing of how load is made."""
