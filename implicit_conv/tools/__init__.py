"""The command line, its commands demo, info and bench, and the timing that perf/ shares."""
