"""Rules on what the host was at while the device was idle."""
