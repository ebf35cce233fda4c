"""The command line and what it runs: demo, info, bench."""
