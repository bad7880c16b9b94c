"""Files of weights and of training states."""
