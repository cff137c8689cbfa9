"""Sheets of collectives and token exchanges across ranks."""
