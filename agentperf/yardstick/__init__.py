"""What this machine's client can measure: it is held against a reference server whose every token is stamped."""
