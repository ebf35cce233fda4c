"""fprop whose vector lanes are pixels; filters are read in place."""
