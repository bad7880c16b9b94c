"""A simulated machine on which the product's own code runs, while one seed decides all that a kernel would decide.

Real are the code of worker, warden and commands, the files, `flock` and SQLite. Simulated are processes, signals,
threads, clocks and what a power failure leaves of a disk. docs/reliability.md lists the checks.
"""
