"""Rules on what moves between devices, and between device and host."""
