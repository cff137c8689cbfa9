"""Verbs for agents, pipelines and fleets of traces."""
