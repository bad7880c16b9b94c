"""Parts shared by workloads with the same model, or the same kind of data."""
