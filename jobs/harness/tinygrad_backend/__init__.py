"""What is tinygrad's own in the harness."""
