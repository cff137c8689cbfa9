"""How long one operation or one collective should take, asked for by name."""
