"""Seeded simulations of the statistics, and the tables of docs/methodology.md that they print (`make simulate`)."""
