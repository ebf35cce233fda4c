"""What is compiled: the entry that each thread runs."""
