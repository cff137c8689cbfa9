"""Rules on matrix products and convolutions."""
