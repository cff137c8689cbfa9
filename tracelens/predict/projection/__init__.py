"""One training step's time and memory, and the search over parallel configurations."""
