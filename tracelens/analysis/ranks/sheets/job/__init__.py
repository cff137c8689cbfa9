"""Sheets of the job: its ranks, clocks, stragglers, steps and pipelines."""
