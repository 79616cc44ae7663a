"""Whether a damaged schedule file is valid all the same: judged anew from the rules on paper, with PyTorch's parser."""

import csv
import io
import json
import re
from collections import Counter

import pytest

pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")

LARGEST = 999_999_999
MARK = b"\xef\xbb\xbf"
"""Of byte order, which an editor puts before a text; it says nothing."""
COMPUTES = ("F", "B", "I", "W")
SHARDS = ("UNSHARD", "RESHARD")


def is_valid_csv(data):
    """Whether PyTorch's parser reads `data`, without `MARK`, and the lists are complete as its format asks for."""
    try:
        text = data.removeprefix(MARK).decode()
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        cells = [[_action(cell.strip(" \t")) for cell in row] for row in rows]
    except (ValueError, RuntimeError, csv.Error):
        return False
    return (
        b"\0" not in data
        and bool(rows)
        and _are_complete([[leaves for leaves in row if leaves] for row in cells], cells)
    )


def _action(text):
    """Return the (kind, stage, micro-batch) that a cell says, two for an overlap, none for an idle cell."""
    if not text:
        return []
    action = pipelining._Action.from_str(text)
    if action is None or repr(action) != text:
        raise ValueError(text)
    leaves = [(a.computation_type.value, a.stage_index, a.microbatch_index) for a in action.sub_actions or (action,)]
    if action.sub_actions and (len(leaves) != 2 or {kind for kind, *_ in leaves} - {*COMPUTES}):
        raise ValueError(text)
    for kind, stage, microbatch in leaves:
        has_no_number = kind in (*SHARDS, "REDUCE_GRAD")
        if (microbatch is None) != has_no_number or max(stage, microbatch or 0) > LARGEST or kind == "OVERLAP_F_B":
            raise ValueError(text)
    return leaves


def _are_complete(rows, cells):
    words = [[leaf for leaves in row for leaf in leaves] for row in rows]
    done = [(kind, stage, i, rank) for rank, row in enumerate(words) for kind, stage, i in row if kind in COMPUTES]
    home = {stage: rank for _, stage, _, rank in done}
    stages, microbatches = {stage for _, stage, *_ in done}, {i for kind, _, i, _ in done if kind == "F"}
    kinds = {}
    for kind, stage, i, _ in done:
        kinds.setdefault((stage, i), []).append(kind)
    counts = Counter(leaf for row in words for leaf in row if leaf[0] not in SHARDS)
    others = [
        (rank, at, leaf) for rank, row in enumerate(words) for at, leaf in enumerate(row) if leaf[0] not in COMPUTES
    ]
    return (
        {rank for *_, rank in done} == set(range(len(rows)))
        and all(home[stage] == rank for _, stage, _, rank in done)
        and stages == set(range(len(stages)))
        and microbatches == set(range(len(microbatches)))
        and kinds.keys() == {(stage, i) for stage in stages for i in microbatches}
        and all(sorted(phases) in (["B", "F"], ["F", "I", "W"]) for phases in kinds.values())
        and max(counts.values()) == 1
        and not (others and any(not leaves for row in cells for leaves in row))
        and all(_is_in_place(words[rank], rank, at, leaf, home, microbatches) for rank, at, leaf in others)
    )


def _is_in_place(row, rank, at, leaf, home, microbatches):
    kind, stage, i = leaf
    if home.get(stage) != rank:
        return False
    if kind == "REDUCE_GRAD":
        return not any(later in ("B", "W") and of == stage for later, of, _ in row[at:])
    if kind in SHARDS:
        return True
    other = stage + (1 if kind in ("SEND_F", "RECV_B") else -1)
    return home.get(other, rank) != rank and i in microbatches


def is_valid_json(data):
    """Whether `data` is a schedule of ours: the right fields, and every op of the right form with numbers in range."""
    try:
        text = data.removeprefix(MARK).decode()
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return False
    return "\0" not in text and isinstance(value, dict) and _is_schedule(value)


def _is_schedule(value):
    types = {"format": str, "version": int, "name": str, "num_stages": int, "num_microbatches": int,
             "rank_to_device": list, "ops": list}  # fmt: skip
    if {key: type(field) for key, field in value.items()} != types:
        return False
    n, m, devices, rows = (value[key] for key in ("num_stages", "num_microbatches", "rank_to_device", "ops"))
    return (
        (value["format"], value["version"]) == ("pipesched.schedule", 1)
        and value["name"].isprintable()
        and n >= 1
        and m >= 1
        and n * m <= 5_000_000
        and len(devices) == len(rows) >= 1
        and all(type(device) is int and 0 <= device <= LARGEST for device in devices)
        and all(type(row) is list and all(_is_op(cell, n, m, len(rows)) for cell in row) for row in rows)
    )


def _is_op(cell, n, m, num_ranks):
    """As `schedules.formats.op_text` says it; a number is written without leading zeros."""
    if type(cell) is not str or re.search(r"(?<![0-9])0[0-9]|[0-9]{10}", cell) or not cell.isascii():
        return False
    if overlap := re.fullmatch(r"\((.*);(.*)\)OVERLAP_F_B", cell):
        return all(re.fullmatch(r"\d+[FBIWR].*", part) and _is_op(part, n, m, num_ranks) for part in overlap.groups())
    if word := re.fullmatch(r"(\d+)(UNSHARD|RESHARD|REDUCE_GRAD|STEP|AVERAGE)", cell):
        return int(word[1]) < n
    if word := re.fullmatch(r"(\d+)[FBIWR](\d+)(@\d+(\+\d+)?)?", cell):
        return int(word[1]) < n and int(word[2]) < m
    if word := re.fullmatch(r"(\d+)(SEND_F|SEND_B|RECV_F|RECV_B)(\d+)([<>])(\d+)", cell):
        stage, other = int(word[1]), int(word[1]) + (1 if word[2] in ("SEND_F", "RECV_B") else -1)
        is_arrow_right = word[4] == (">" if "SEND" in word[2] else "<")
        return is_arrow_right and stage < n and 0 <= other < n and int(word[3]) < m and int(word[5]) < num_ranks
    return False


def _refuse(text):
    raise ValueError(text)


def _unique(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError(pairs)
    return dict(pairs)
