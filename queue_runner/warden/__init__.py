"""The supervisor of one run: standard library only, copied into the run's folder and started there."""
