"""What the commands say on the terminal, or write, about a projected step, a search, a routing or a served load."""
