"""N agents spread over load processes; yields records without knowing what the load means."""
