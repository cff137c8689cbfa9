"""To which call, module, step and category the time of every device event belongs."""
