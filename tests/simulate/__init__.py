"""Seeded simulations of the statistics, and the tables of docs/simulations.md that they print (`make simulate`)."""
