"""What the workloads of this folder share. `python jobs/NAME.py` finds this package beside itself."""
