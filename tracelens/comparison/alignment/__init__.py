"""Which calls of one recording are which of another."""
