"""The side of the harness that belongs to MLX."""
