"""Lifetimes of bytes: the memory of ranks on their devices, and from when to when.

    list of a rank    Recv   F   Send ..  Recv   B   Send ..  Step
    receive_buffers   ├─────┤             ├─────────┤                    the activation goes with F, the gradient with B
    activations             ├───────────────────────┤
    send_buffers                ├───────────────┤   ├─────────┤          until the receiver has shown that it used it
    gradients                                       ├──────────────┤
    weights          ─────────────────────────────────────────────────

The kinds, and when each is held:

    weights          one version of every stage on the rank, always
    optimizer        its state, always
    weight_versions  a copy of the weights that a Step overwrites while a later op still reads them, from the Step to
                     the end of the last such op; a predicted copy from the start of its op to just after its end
    reference        of stages that are averaged: one reference model on the device, always
    updates          of such a stage, for each rank: room for its update, or the weights before its Step, always
    gradients        `gradient_bytes`, by default as many as of the weights, from the end of a stage's first B or W to
                     the end of its next Step; `kept_gradient_bytes` always
    activations      from F to the end of B; when the backward is split, to the end of I, and from there to the end of
                     W the part that W still needs; with R only the stage's input until R; and while B or I runs its
                     working memory, such as gradients of activations inside the stage
    receive_buffers  pooled (as our executor between processes): from the Recv to the start of F (then it is the stage's
                     input, part of the activations), and for a gradient until B or I is over. At use (as our executor
                     on the streams of a GPU): from the start of F, B or I. Per micro-batch (as PyTorch allocates them):
                     one for every message of the whole run, always; the stage's input stays there and is no part of
                     the activations
    send_buffers     an output, from the end of its op. Pooled: until its rank takes a message that the receiver sent
                     after use, which is the rank's only proof (no call reports whether a message has left); for a stage
                     on the same rank until that stage's op starts (F) or ends (B, I). Per micro-batch: to the end of
                     its transfer. None if the activations contain it already

A Reduce holds nothing of its own: its ring works in the buckets that hold the gradients until the Step.

Memory between ops and inside ops is covered: B and I hold their working memory, as far as it is in the costs; a Step
holds its gradients and the copy that it keeps; an op on predicted weights holds its copy, at its end beside its output.
Without the working memory of B and I, it is the memory that the executor measures between ops. Within the first B of a
batch gradients grow while activations are freed, so the peak inside an op may be higher, by the smaller of the two at
most. Temporary memory of an optimizer or a prediction is not counted. The working memory of F, W and R is not in the
costs.

Which bytes are held from when to when follows from the lists alone; costs say how many bytes these are. A point is one
of four places of a cell: its rank reaches it, its op starts, ends, or drops its predicted copy of the weights. Times of
a Timeline turn points into instants (`memory.instants`), so that ops which take no time hold their bytes too.

The input of stage 0 is data: its bytes are not in the costs, and with R it counts as nothing.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from itertools import chain, repeat
from operator import mul
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from pipesched.profiles.costs import StageCosts
from pipesched.schedules.columns import OpColumns, machine_code, message_table, op_cells
from pipesched.schedules.ops import Message, Payload
from pipesched.simulator import Buffers
from pipesched.simulator.memory.lifetime_loop import (
    ACTIVATIONS,
    LIFETIME_PARTS,
    KnownCells,
    KnownPeers,
    KnownPosts,
    KnownStages,
    LifetimeLists,
    Lifetimes,
    find_lifetimes,
)

KINDS = (
    "weights",
    "weight_versions",
    "reference",
    "updates",
    "gradients",
    "optimizer",
    "activations",
    "receive_buffers",
    "send_buffers",
)  # fmt: skip
"""The kinds of bytes; every memory sample has all of them, in this order."""

_ROWS_OF = (5, 4, 3, 2, 2, 3)
"""The most lifetimes that begin at a computation, by its code; at any other cell one begins at most."""


class Part(IntEnum):
    """A part of the bytes of a stage, as the loop numbers them; a ``*_SAVED`` part is 0 if F saves the output anyway.

    The activations of a micro-batch, by the ops between which they are held:

        F ─────────────── B          SAVED              F to the end of B
        F ─────── I ───── W          SAVED              F to the end of I
                    └─────┘          SAVED_FOR_WEIGHT   the end of I to the end of W
        F ─── R ── B                 INPUT              F to R, then SAVED from R on
        └─────┘
    """

    INPUT = 0
    SAVED = 1
    SAVED_FOR_WEIGHT = 2
    WORKING = 3
    WEIGHTS = 4
    OPTIMIZER = 5
    UPDATES = 6
    VERSION = 7
    GRADIENTS = 8
    RECEIVED = 9
    SENT = 10
    SENT_SAVED = 11
    PASSED = 12
    PASSED_SAVED = 13
    RECEIVED_GRADIENT = 14
    SENT_GRADIENT = 15
    PASSED_GRADIENT = 16


KIND_OF = np.array(
    [
        KINDS.index(kind)
        for kind in (
            *("activations",) * 4, "weights", "optimizer", "updates", "weight_versions", "gradients", "receive_buffers",
            *("send_buffers",) * 4, "receive_buffers", *("send_buffers",) * 2,
        )
    ]
)  # fmt: skip
"""Index of the kind in `KINDS`, by part."""


def activation_bytes(costs: StageCosts, part: Part, stage: int) -> int:
    """Return the bytes of `INPUT`, `SAVED` or `SAVED_FOR_WEIGHT`; 0 for the input of stage 0, which is data."""
    cost = costs.stages[stage]
    if part is Part.INPUT:
        return costs.stages[stage - 1].output_bytes if stage else 0
    if part is Part.SAVED or cost.saved_for_weight_bytes is None:
        return cost.saved_bytes
    return cost.saved_for_weight_bytes


def part_bytes(costs: StageCosts, num_stages: int, buffers: Buffers = "pooled") -> list[list[int]]:
    """Return the bytes of each part, by stage; a buffer per micro-batch keeps the stage's input, so F does not."""
    stages, rows = costs.stages[:num_stages], list[list[int]]()
    for part in (Part.INPUT, Part.SAVED, Part.SAVED_FOR_WEIGHT):
        sizes = [activation_bytes(costs, part, stage) for stage in range(num_stages)]
        if buffers == "per_microbatch":
            inputs = (activation_bytes(costs, Part.INPUT, stage) for stage in range(num_stages))
            sizes = [max(0, size - its) for size, its in zip(sizes, inputs, strict=True)]
        rows.append(sizes)
    weights, outputs = [cost.weight_bytes for cost in stages], [cost.output_bytes for cost in stages]
    messages = [costs.message_bytes(Message(Payload.ACTIVATION, stage, 0)) for stage in range(num_stages)]
    gradients = [Message(Payload.GRADIENT, stage + 1, 0) for stage in range(num_stages)]
    sent_gradients = [costs.message_bytes(message) for message in gradients]
    rows += [[cost.working_bytes for cost in stages], weights, [cost.optimizer_bytes for cost in stages]]
    rows += [weights, weights, [cost.said("gradient_bytes") for cost in stages], messages]
    for sizes, is_own in ((messages, costs.compression is None), (outputs, True)):
        rows += [
            sizes,
            [0 if cost.output_is_saved and is_own else size for cost, size in zip(stages, sizes, strict=True)],
        ]
    return [*rows, sent_gradients, sent_gradients, [costs.value_bytes(message) for message in gradients]]


def lifetimes(ops: OpColumns, num_stages: int, buffers: Buffers | None = "pooled") -> Lifetimes:
    """Return the lifetimes of all bytes that the ranks ever hold, but for the reference model of averaged stages.

    Args:
        ops: The lists, lowered.
        num_stages: Number of stages of the whole pipeline.
        buffers: How receive buffers are allocated; None for the saved activations alone.
    """
    zeros, none = machine_code.int32s, partial(machine_code.int32s, number=-1)
    cells, num_cells, num_ranks, has_all = ops.cells, len(ops.codes), ops.num_ranks, buffers is not None
    if not len(cells.others):
        cells = cells._replace(others=zeros(num_cells))
    num_microbatches = 1 + machine_code.bounds(ops.microbatches)[1]
    versions = cells.others[ops.codes % op_cells.OVERLAPPED < op_cells.SEND_F] if has_all else cells.others[:0]
    num_versions = 1 + int(versions.max(initial=0))
    num_states, num_posts = num_stages * num_microbatches, sum(ops.counts[op_cells.SEND_F : op_cells.REDUCE])
    num_posts, num_peers = has_all * num_cells, has_all * 2 * min(num_posts, num_ranks * num_ranks)
    room = sum(map(mul, ops.counts, chain(_ROWS_OF, repeat(1))))
    room += 2 * min(num_stages * num_ranks, num_cells)
    rows: Any = Lifetimes(zeros(num_ranks + 1), machine_code.int8s(room), zeros(room), zeros(room), zeros(room))
    table, counts = message_table(num_stages), (2, 2 * has_all, 2 * has_all, 1, 1)
    machine_code.run_loop(
        find_lifetimes,
        LifetimeLists(
            cells, table.other, table.made, num_stages, num_microbatches, num_versions,
            ACTIVATIONS if buffers is None else get_args(Buffers).index(buffers),
        ),
        KnownCells(*(none(count * num_states) for count in counts)),
        KnownPosts(zeros(num_posts), none(num_posts), zeros(num_posts), none(num_posts)),
        KnownPeers(
            none(num_ranks), *(none(num_peers) for _ in range(5)), *(zeros(num_peers) for _ in range(3))
        ),
        KnownStages(*(none(num_stages * count) for count in (1, 1, 1, 1, has_all * num_versions))),
        rows, num_steps=8 * num_cells, parts=LIFETIME_PARTS,
    )  # fmt: skip
    count = int(rows.begins[-1])
    return Lifetimes(rows.begins, *(column[:count] for column in rows[1:]))


def row_bytes(rows: Lifetimes, costs: StageCosts, num_stages: int, buffers: Buffers = "pooled") -> npt.NDArray[Any]:
    """Return the bytes of each lifetime, in 64 bits if their sum fits, otherwise as Python's numbers."""
    sizes = part_bytes(costs, num_stages, buffers)
    most = max(map(max, sizes), default=0) * max(1, len(rows.parts))
    table: npt.NDArray[Any] = np.array(sizes, np.int64 if most < 2**62 else object)
    taken: npt.NDArray[Any] = table[rows.parts, rows.stages]
    return taken
