"""Constants of devices and clusters, fitted to measured times."""
