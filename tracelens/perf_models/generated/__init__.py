"""Kernels that a compiler generated."""
