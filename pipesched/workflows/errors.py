"""What is wrong with an argument of the library, by its name in Python."""

from __future__ import annotations


class ArgumentError(ValueError):
    """An argument, or a combination of arguments, makes no sense: ``name: got .., expected ..; try ..``."""
