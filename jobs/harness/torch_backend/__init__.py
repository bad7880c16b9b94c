"""The harness for PyTorch."""
