"""What is made when first used, so that an import costs little."""
