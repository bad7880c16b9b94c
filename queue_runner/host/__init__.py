"""This machine: its clocks, processes, services, power and devices, one file each."""
