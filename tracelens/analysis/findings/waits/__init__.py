"""Rules on what an idle device waited for."""
