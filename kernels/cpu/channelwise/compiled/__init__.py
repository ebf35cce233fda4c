"""What is compiled: the vectors of a pixel, and the two operators."""
