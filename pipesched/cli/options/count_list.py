"""Whole numbers as people list them: ``1,2,4-8``."""

from __future__ import annotations

from pipesched.cli.errors import InputError

_MOST = 10_000
"""More are a slip of the hand."""


def counts(text: str, option: str, least: int, most: int = 2**31 - 1) -> tuple[int, ...]:
    """Return the numbers of ``1,2,4-8``, rising, each once.

    Raises:
        InputError: A part is no number or range, or below `least`, or above `most`.
    """
    counted: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        try:
            numbers = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            numbers = range(0)
        if numbers and numbers[-1] > most:
            raise InputError(f"{option}: got {part!r}, expected at most {most}; try {option} {least}-{least + 3}")
        if not numbers or numbers[0] < least or len(numbers) > _MOST:
            raise InputError(
                f"{option}: got {part!r}, expected whole numbers of at least {least}, or a range of them; try "
                f"{option} {least},{least + 1} or {least}-{least + 3}"
            )
        counted.update(numbers)
    return tuple(sorted(counted))
