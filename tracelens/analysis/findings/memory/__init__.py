"""Rules on memory: the allocator, and what is done to need less of it."""
