"""Sheets of ops, kernels, copies and collectives."""
