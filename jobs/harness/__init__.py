"""The library that the workloads of this folder share. `python jobs/NAME.py` finds it beside itself."""
