"""What workloads with the same model, or the same kind of data, share."""
