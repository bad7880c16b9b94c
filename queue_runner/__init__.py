"""mpsq: one accelerator, one job at a time, numbers you can trust."""

__version__ = "0.2.0"
