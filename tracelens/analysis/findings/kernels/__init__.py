"""Rules on single kernels: how far they are from their roofline, how short they are."""
