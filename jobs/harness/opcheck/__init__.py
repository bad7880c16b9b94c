"""opcheck: compare every operator of torch on a device with the CPU."""
