"""The supervisor of one run: standard library only, started from code that its worker holds (worker/launch.py)."""
