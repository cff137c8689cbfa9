"""Kineto JSON -> columns (``read``, ``table``) -> op tree (``tree``), and back (``writer``). Knows no perf model."""
