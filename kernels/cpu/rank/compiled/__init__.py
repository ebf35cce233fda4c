"""What is compiled: tiles of images, and the levels through which their rows go."""
