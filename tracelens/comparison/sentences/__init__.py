"""What a comparison says in words."""
