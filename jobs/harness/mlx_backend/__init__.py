"""The harness for MLX."""
