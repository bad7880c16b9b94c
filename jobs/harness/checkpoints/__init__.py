"""The files that weights and states of a training are read from and written to."""
