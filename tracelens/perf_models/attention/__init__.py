"""Attention, and what stands in its place or right before it."""
