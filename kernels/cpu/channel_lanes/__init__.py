"""fprop by dot products: vector lanes are channels."""
