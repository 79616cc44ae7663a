"""Random ops of every kind, and seeded damage to texts."""

import random

from hypothesis import strategies as st

from pipesched.schedules.ops import STAGE_WORDS, Compute, Message, Op, Overlap, Payload, Phase, Recv, Send

ALPHABET = "0123456789FBIW@+<>;(),\"'\\ \r\n\tSEND_RCVUHA{}[]:-.eNx\x00\x85\u2028é😀\ufeff"


def computations(num_stages: int, num_microbatches: int) -> st.SearchStrategy[Compute]:
    return st.builds(
        Compute,
        st.sampled_from(Phase),
        st.integers(0, num_stages - 1),
        st.integers(0, num_microbatches - 1),
        st.integers(0, 3) | st.just(999_999_999),
        st.integers(0, 3),
    )


def messages(num_stages: int, num_microbatches: int) -> st.SearchStrategy[Message]:
    """Messages between neighbouring stages; at least two stages."""
    microbatch = st.integers(0, num_microbatches - 1)
    down = st.builds(Message, st.just(Payload.ACTIVATION), st.integers(0, num_stages - 2), microbatch)
    up = st.builds(Message, st.just(Payload.GRADIENT), st.integers(1, num_stages - 1), microbatch)
    return down | up


def ops(num_stages: int, num_microbatches: int, num_ranks: int) -> st.SearchStrategy[Op]:
    compute = computations(num_stages, num_microbatches)
    stage, peer = st.integers(0, num_stages - 1), st.integers(0, num_ranks - 1)
    kinds: list[st.SearchStrategy[Op]] = [compute, st.builds(Overlap, compute, compute)]
    kinds += [st.builds(kind, stage) for kind in STAGE_WORDS]
    if num_stages > 1:
        kinds += [st.builds(kind, messages(num_stages, num_microbatches), peer) for kind in (Send, Recv)]
    return st.one_of(kinds)


def damaged(text: str, chance: random.Random) -> str:
    """Return `text` with one to three changes: of a character, a cell, a row, two cells, or the end cut off."""
    for _ in range(chance.randint(1, 3)):
        text = chance.choice((_character, _character, _cell, _swap, _swap, _row, _cut))(text, chance)
    return text


def damaged_bytes(text: str, chance: random.Random) -> bytes:
    """Return the bytes of `text` with one to four of them replaced by any others."""
    data = bytearray(text.encode())
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def _character(text: str, chance: random.Random) -> str:
    place = chance.randint(0, len(text))
    return text[:place] + chance.choice(("", chance.choice(ALPHABET))) + text[place + chance.randint(0, 1) :]


def _cell(text: str, chance: random.Random) -> str:
    cells = text.split(",")
    place = chance.randrange(len(cells))
    other = cells[chance.randrange(len(cells))]
    cells[place] = chance.choice((other, "", "9" * 30, "null", "1e999", "[" * 5000, "true"))
    return ",".join(cells)


def _swap(text: str, chance: random.Random) -> str:
    rows = [row.split(",") for row in text.split("\n")]
    row = chance.choice(rows)
    place, other = (chance.randrange(len(row)) for _ in range(2))
    row[place], row[other] = row[other], row[place]
    return "\n".join(",".join(row) for row in rows)


def _row(text: str, chance: random.Random) -> str:
    rows = text.splitlines(keepends=True) or [""]
    place = chance.randrange(len(rows))
    rows[place : place + 1] = chance.choice(([], [rows[place]] * 2, ["\r\n"], [rows[chance.randrange(len(rows))]]))
    return "".join(rows)


def _cut(text: str, chance: random.Random) -> str:
    return text[: chance.randint(0, len(text))]
