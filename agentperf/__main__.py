"""`python -m agentperf`."""

from agentperf.cli.app import main

if __name__ == "__main__":
    main()
