"""The command line: one module a command, and the terminal views."""
