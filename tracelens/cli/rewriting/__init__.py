"""Verbs that write traces again: cut, without names, in other formats."""
