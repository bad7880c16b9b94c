"""The supervisor of one run: the standard library alone, copied as a folder beside the run and started there."""
