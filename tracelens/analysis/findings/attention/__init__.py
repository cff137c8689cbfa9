"""Rules on attention, its cache, and on prefill and decode."""
