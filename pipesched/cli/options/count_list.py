"""Lists of numbers as people write them: ``1,2,4-8``, ``8:512:x2``, ``4:16:4``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from pipesched.cli.errors import InputError
from pipesched.cli.options.key_values import number, read_integer

_MOST = 10_000
"""Most numbers of a list; more are a mistake."""


def counts(text: str, option: str, least: int, most: int = 2**31 - 1) -> tuple[int, ...]:
    """Return the numbers of ``1,2,4-8,8:512:x2``, rising, each once.

    Raises:
        InputError: A part is no number or range, or below `least`, or above `most`.
    """
    counted: set[int] = set()
    for part in text.split(","):
        numbers = _whole_numbers(part, option)
        if numbers and numbers[-1] > most:
            raise InputError(f"{option}: got {part!r}, expected at most {most}; try {option} {least}-{least + 3}")
        if not numbers or numbers[0] < least or len(numbers) > _MOST:
            raise InputError(
                f"{option}: got {part!r}, expected whole numbers of at least {least}, or a range of them; try "
                f"{option} {least},{least + 1} or {least}-{least + 3}"
            )
        counted.update(numbers)
    return tuple(sorted(counted))


def _whole_numbers(part: str, option: str) -> range | list[int]:
    if ":" in part:
        return [int(value) for value in _ranged(part, option, lambda text: read_integer(text, option))]
    first, dash, last = (piece.strip() for piece in part.partition("-"))
    try:
        return range(int(first), int(last if dash else first) + 1)
    except ValueError:
        return range(0)


def amounts(text: str, place: str) -> tuple[float, ...]:
    """Return the numbers of ``1e9,10GB/s,1:16:x2``, in their order, each once; units fit the key of `place`.

    Raises:
        InputError: A part is no number or range.
    """
    read: list[float] = []
    for part in text.split(","):
        read += _ranged(part, place, lambda text: number(text, place)) if ":" in part else [number(part, place)]
    return tuple(dict.fromkeys(read))


def _ranged(part: str, place: str, read: Callable[[str], float]) -> list[float]:
    """Return the numbers of ``first:last``, ``first:last:step`` or ``first:last:xfactor``.

    Raises:
        InputError: It is no such range, or an empty or infinite one.
    """
    first, last, *steps = (piece.strip() for piece in part.split(":"))
    step = steps[0] if len(steps) == 1 else "1"
    is_factor = step.startswith("x")
    low, high = read(first), read(last)
    try:
        by = read(step.removeprefix("x"))
    except InputError:
        by = 0.0
    if len(steps) > 1 or high < low or by <= (1 if is_factor else 0) or (is_factor and low <= 0):
        raise InputError(
            f"{place}: got {part!r}, expected a range that rises, first:last:step or first:last:xfactor; "
            "try 8:512:x2 or 4:16:4"
        )
    most = math.log(high / low, by) if is_factor else (high - low) / by
    if most > _MOST:
        raise InputError(f"{place}: got {part!r}, expected a range of at most {_MOST} numbers; try a larger step")
    return [*_rising(low, high, by, is_factor=is_factor)]


def _rising(low: float, high: float, by: float, *, is_factor: bool) -> Iterator[float]:
    value, index = low, 0
    while value <= high * (1 + 1e-12):
        yield value
        index += 1
        value = low * by**index if is_factor else low + by * index
