"""The harness for tinygrad."""
