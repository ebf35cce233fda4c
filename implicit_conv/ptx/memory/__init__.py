"""What memory holds, where it lies, and who has seen which of its bytes."""
