"""A model of an inference server, in process and behind real HTTP."""
