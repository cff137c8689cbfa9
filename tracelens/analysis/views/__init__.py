"""What a trace shows beside its ops, without a perf model: a view is one file and a line in ``assembly``."""
