"""Verbs that answer without a trace: operations, training, serving and routing, their models and constants."""
