"""One rank, of a training step and of a serving engine."""
