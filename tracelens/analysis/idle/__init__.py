"""What the device waited for: the causes of idle time, and the critical path."""
