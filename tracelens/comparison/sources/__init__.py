"""Traces, reports and baselines, each reduced to a side of a comparison."""
