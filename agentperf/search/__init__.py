"""The planner: which level to probe next, as a pure function of what has been measured."""
