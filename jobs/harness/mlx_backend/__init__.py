"""What is MLX's own in the harness."""
