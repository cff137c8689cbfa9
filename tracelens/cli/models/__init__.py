"""Verbs that answer without a trace: the models of operations, training, serving and routing, and their constants."""
