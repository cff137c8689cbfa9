"""What the commands say on the terminal about a projected step, a search, a routing or a served load."""
