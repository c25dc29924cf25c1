"""The conductor, where the parts meet: level by level until the planner ends."""
