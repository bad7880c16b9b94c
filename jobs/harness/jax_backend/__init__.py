"""What is JAX's own in the harness."""
