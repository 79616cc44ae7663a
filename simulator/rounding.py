"""How far times may differ that are the same but for rounding."""

SAME = 1e-9
"""Relative, of a makespan or a period: times nearer to each other than this are one, but for roundings."""
