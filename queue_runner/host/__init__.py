"""This machine: its clocks, its processes, its services, its power, its devices. One file each."""
