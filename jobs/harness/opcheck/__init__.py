"""opcheck: every operator of torch, on a device and on the CPU, compared."""
