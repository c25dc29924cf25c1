"""One file per foreign format that becomes a trace set."""
