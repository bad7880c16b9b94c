"""mpsq: one accelerator, one job at a time, numbers you can trust."""

__version__ = "1.0.0"
