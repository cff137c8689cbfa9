"""How long the parts of an engine's step take."""
