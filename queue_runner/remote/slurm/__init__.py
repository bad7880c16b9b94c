"""Slurm as a target of --on."""
