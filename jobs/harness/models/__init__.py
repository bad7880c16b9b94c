"""What workloads of the same model have in common, whatever the framework or the architecture."""
