"""This machine: its processes, locks, run folders, secrets, services, power and devices, one file each."""
