"""A copy of the served model: its queue, its cache, and the steps of its lanes."""
