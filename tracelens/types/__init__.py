"""What all rooms speak of: data types, units, a recorded op's signature, a device's recorded properties."""
