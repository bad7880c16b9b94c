"""The harness for JAX."""
