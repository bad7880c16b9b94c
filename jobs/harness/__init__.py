"""What the workloads of this folder share. They are programs: `python jobs/NAME.py` finds this package beside itself."""
