"""Micro-benchmarks: how they run, and how their results are checked."""
