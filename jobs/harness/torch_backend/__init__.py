"""What is PyTorch's own in the harness."""
