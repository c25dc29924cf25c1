"""Tables and figures of a run directory. Starts nothing."""
