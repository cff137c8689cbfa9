"""Rules on elementwise kernels, casts, copies within the device and optimizers."""
