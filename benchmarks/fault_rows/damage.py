"""Seeded damage to files and command lines: of bytes, of text, of the values in a JSON file."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**9, 10**30, -(2**63), 1e308, 5e-324, float("nan"), float("inf"), -0.0,
    "", "0", "nan", "../../../etc/passwd", "__import__('os').system('true')", "\x1b[31mred\x1b[0m", "a\nb", "\u202e",
    "<script>alert(1)</script>", "x" * 100_000, "1F0", "9" * 400, [], {}, [[]], {"": {}}, [0] * 1000,
)  # fmt: skip
"""Replacements for a value of a JSON file."""
CELLS = (
    "",
    "-1",
    "nan",
    "inf",
    "1e999",
    "0x10",
    "1_000",
    "\u0661",
    "9" * 40,
    "=1+1",
    '"',
    "a\x00b",
    "\ufeff",
    "x" * 10_000,
)
"""Replacements for a word of a text or of a command line."""
DEPTH = 20_000
"""Depth of nested brackets."""


def damaged_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return `data` with one to three random damages."""
    ways: list[Callable[[bytes, random.Random], bytes]] = [_bits, _cut, _part_twice, _other_bytes, _words]
    for _ in range(chance.randint(1, 3)):
        data = chance.choice(ways)(data, chance)
    return data


def damaged_json(data: bytes, chance: random.Random) -> bytes:
    """Return a JSON file, or a file with a JSON document per line, with one to three changed values or fields.

    Data that is not valid JSON is returned unchanged.
    """
    lines = data.splitlines() if data.count(b"\n{") else [data]
    try:
        documents = [json.loads(line) for line in lines]
    except ValueError:
        return damaged_bytes(data, chance)
    place = chance.randrange(len(documents))
    if chance.random() < 0.02:
        lines[place] = chance.choice((b"[", b'{"a":')) * DEPTH
        return b"\n".join(lines)
    for _ in range(chance.randint(1, 3)):
        documents[place] = _with_other_value(documents[place], chance)
    return b"\n".join(json.dumps(document).encode() for document in documents) + b"\n"


def damaged_line(words: Sequence[str], others: Sequence[str], chance: random.Random) -> list[str]:
    """Return a command line with one to three words left out, doubled, misspelt, swapped or replaced."""
    line = list(words)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(line)) if line else 0
        word = line[place] if line else ""
        line[place : place + 1] = chance.choice(
            (
                [],
                [word, word],
                [_misspelt(word, chance)],
                [chance.choice(CELLS).replace("\x00", "")],
                [chance.choice(others)],
                [word, chance.choice(others)],
                [f"{word}={chance.choice(others)}"],
                [str(VALUES[chance.randrange(len(VALUES))]).replace("\x00", "")],
            )
        )
    return line


def _misspelt(word: str, chance: random.Random) -> str:
    place = chance.randint(0, len(word))
    return word[:place] + chance.choice(("", "x", "-", "=", ",", "9", "é")) + word[place + chance.randint(0, 1) :]


def _bits(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8) if data else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randint(0, len(data))]


def _part_twice(data: bytes, chance: random.Random) -> bytes:
    begin, end = sorted(chance.randint(0, len(data)) for _ in range(2))
    return data[:end] + data[begin:end] * chance.randint(1, 3) + data[end:]


def _other_bytes(data: bytes, chance: random.Random) -> bytes:
    place = chance.randint(0, len(data))
    other = chance.choice((b"\0" * 100, b"\xff\xfe", b"\xef\xbb\xbf", b"\x80\x02", chance.randbytes(30), b"\r", b"\n"))
    return data[:place] + other + data[place:]


def _words(data: bytes, chance: random.Random) -> bytes:
    words = data.split(b",")
    words[chance.randrange(len(words))] = chance.choice(CELLS).encode()
    return b",".join(words)


def _with_other_value(document: Any, chance: random.Random) -> Any:
    document = copy.deepcopy(document)
    holders = list(_holders(document))
    if not holders:
        return chance.choice(VALUES)
    holder = chance.choice(holders)
    keys: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = chance.choice(keys)
    match chance.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[f"{key}x"] = holder.pop(key)
        case 1:
            holder.append(holder[key])
        case 2:
            holder[key] = copy.deepcopy(holder[chance.choice(keys)])
        case _:
            holder[key] = chance.choice(VALUES)
    return document


def _holders(value: Any) -> list[Any]:
    """Return the lists and objects in `value`, itself included, that are not empty."""
    if not isinstance(value, dict | list) or not value:
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [value, *(holder for part in inner for holder in _holders(part))]
