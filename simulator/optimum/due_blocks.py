"""The due dates that the planner tries: its first blocks, and their random changes.

A block has a due date for each op of a micro-batch, and the next micro-batch is due an interval later
(arXiv:2405.15362, section 3). Along the way of a micro-batch, from F of the first stage to the backward of the first
stage, due dates are stretched: each passage through the ranks has a factor for its op times, and a gap before it.
Longer ways need more memory. Micro-batches may come in rounds, of which the first may be shorter:

    interval 4, rounds of 3, 1 less in the first, haste 3/4    micro-batch  0 1    2  3  4   5  6  7
                                                               due at       0 1   11 12 13  23 24 25

A W has no due date unless gradients are large compared with the activations of a micro-batch. Then, in some blocks, the
first W of a stage, or B, is due long after it could run, and the first round has more micro-batches than others.
A stage holds its gradients from its first W on, and until its Step. Before that W its rank has room for more:

    gradients 2.5, limit 3.5     F0 F1 F2 I0 I1 I2 W0 W1 W2 F3 I3 W3        three micro-batches before W0, then one
    two stages on a rank         .. all I of both .. W0 W1 .. Step of one stage, W0 W1 .. Step of the other

The same holds for the first B of stages that share a rank. A lag is the delay of the first W or B of a stage against
its usual due date (a W right after its I, a B in its turn), in intervals from micro-batch to micro-batch. All other W
and B keep their due dates, or are due right after the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from random import Random
from typing import NamedTuple, TypeAlias, final

from pipesched.schedules.ops import Compute, Phase
from pipesched.simulator.optimum.due_arrays import recomputed_before
from pipesched.simulator.optimum.order_problem import OrderProblem

_STRETCHES = ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (1.5, 1.0), (1.5, 1.5), (2.0, 2.0), (3.0, 1.0), (3.0, 3.0))
"""Stretches of odd and even passages that are tried first."""
_RULES = ((False, False), (True, False), (True, True))
"""Whether ranks are patient and strict, in blocks that are tried first."""
_RESERVE, _RESERVES = 2.0, (4.0, 6.0, 10.0)
"""Messages for which there is room in most blocks that are tried first, and in some."""
_NO_ROUNDS = (1, 0, 0.0)
"""Micro-batches of a round, how many the first one has less, and the haste in them, where all are alike."""
_INTERVALS = (1.25, 1.5, 2.0, 3.0)
"""Longer intervals that are tried with the shortest way."""
_NEXT = 1e-7
"""How much later than another that it waits for an op is due, at least."""
_MOST_IN_FIRST = 8
"""The most micro-batches of a first round, in blocks that are tried first."""
_FIRST_ROUNDS = ((1, 1.0, 1.0), (2, 1.0, 1.0), (1, None, 1.0), (1, 1.5, 0.5))
"""Micro-batches of the other rounds, interval and haste there; None: they come one after the other."""
Lags: TypeAlias = tuple[float, ...]
"""The lag of each stage; none: a B is due as ever, and each W fills the time in which there is nothing else."""
_SOONER = 1e-6
"""How much sooner than the F of a micro-batch the ops before it are due [intervals]."""
_CHANGES = (-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0)
"""By how much a lag is changed [intervals]."""


@final
@dataclass(frozen=True, slots=True)
class DueBlock:
    """Due dates; gaps and shifts are in units of the mean op time.

    Micro-batches come in rounds. Within a round they follow each other faster, by a share of the interval, and the next
    round makes up for it.

    Attributes:
        stretches: Factor of the op times of a passage, by passage.
        gaps: Gap before a passage.
        interval: Mean time from one micro-batch to the next, in units of the busiest rank's work per micro-batch.
        round_size: Micro-batches of a round.
        left_out: Micro-batches that the first round lacks; negative if it has more.
        haste: Share of the interval by which micro-batches of a round follow faster.
        reserve: Messages for which ranks keep room.
        is_patient: Whether ranks leave out a W that would delay other ops.
        is_strict: Whether ranks wait for the forward or backward that is due first.
        shifts: Delay of due dates, in the order of the way.
        lags: Delay of the first W or B of a stage [intervals], by stage.
        is_w_in_turn: Whether a W with a lag runs in its turn; otherwise it waits for an idle rank.
    """

    stretches: tuple[float, ...]
    gaps: tuple[float, ...]
    interval: float
    round_size: int
    left_out: int
    haste: float
    reserve: float
    is_patient: bool
    is_strict: bool
    shifts: tuple[float, ...]
    lags: Lags = ()
    is_w_in_turn: bool = False


class LaggingStage(NamedTuple):
    """A stage whose gradients may come later, and its kinds.

    Attributes:
        stage: The stage.
        forward: F.
        backward: The kind that makes the gradient of the input: I, or B.
        gradients: The kind that makes the gradients of the weights: W, or B.
    """

    stage: int
    forward: int
    backward: int
    gradients: int


@final
class GradientLags:
    """The lags that are tried for one problem.

    Args:
        stages: The stages that may lag, the first one first.
        num_microbatches: Micro-batches.
        num_ranks: Ranks, and stages of a chunk.
    """

    def __init__(self, stages: Sequence[LaggingStage], num_microbatches: int, num_ranks: int) -> None:
        self._num_microbatches = float(num_microbatches)
        self._chunks = [stage.stage // num_ranks for stage in stages]
        self._num_chunks = max(self._chunks, default=-1) + 1

    def even(self, lag: float) -> Lags:
        """Return the same lag for every stage."""
        return (lag,) * len(self._chunks)

    def at_the_end(self) -> Iterator[Lags]:
        """Yield lags by which gradients come after the last forward, the gradients of one chunk last."""
        for last in range(self._num_chunks):
            yield tuple((3.0 if chunk == last else 2.0) * self._num_microbatches for chunk in self._chunks)

    def before(self, microbatch: float, spans: Sequence[float]) -> Lags:
        """Return lags by which the gradients of a stage come right before the F of a micro-batch.

        Args:
            microbatch: The micro-batch; with a fraction, between two.
            spans: From the F of a micro-batch to its backward, by stage [intervals].
        """
        return tuple(max(0.0, microbatch - span - _SOONER) for span in spans)

    def of_one_chunk(self, lags: Lags) -> Iterator[Lags]:
        """Yield lags for all chunks, and for each of several chunks alone."""
        yield lags
        for late in range(self._num_chunks if self._num_chunks > 1 else 0):
            yield tuple(lag if chunk == late else 0.0 for lag, chunk in zip(lags, self._chunks, strict=True))

    def drawn(self, draw: Random, spans: Sequence[float]) -> Lags:
        """Return random lags: from `before` with one drawn lag, or drawn for each stage, or drawn for each chunk."""
        lag = draw.randint(0, int(self._num_microbatches)) + draw.choice((0.0, 0.5))
        chance = draw.random()
        if chance < 0.3:
            return self.before(lag, spans)
        lags = (0.0, lag, lag, lag / 2, 2 * self._num_microbatches, 3 * self._num_microbatches)
        if chance < 0.5:
            return tuple(draw.choice(lags) for _ in self._chunks)
        of_chunks = [draw.choice(lags) for _ in range(self._num_chunks)]
        return tuple(of_chunks[chunk] for chunk in self._chunks)

    def changed(self, lags: Lags, draw: Random, spans: Sequence[float]) -> Lags:
        """Return `lags` with one or all of them changed; sometimes newly drawn lags, or none."""
        chance = draw.random()
        if chance < 0.1 and lags:
            return ()
        if chance < 0.4 or not lags:
            return self.drawn(draw, spans)
        more, only = draw.choice(_CHANGES), draw.randrange(len(lags)) if draw.random() < 0.7 else None
        return tuple(lag if only not in {None, at} else max(0.0, lag + more) for at, lag in enumerate(lags))


@final
class DueBlocks:
    """The blocks of one problem.

    Args:
        problem: The problem.
        ticks: Duration of an op [ticks], by kind.
        has_messages: Whether ranks may keep room for messages.

    Attributes:
        unit: Mean duration of an op [ticks].
    """

    def __init__(self, problem: OrderProblem, ticks: Sequence[int], *, has_messages: bool) -> None:
        self._num_microbatches, self._num_ranks = problem.num_microbatches, problem.num_ranks
        self._num_kinds, self._has_messages = len(problem.kinds), has_messages
        self._way = _way(problem)
        self._passages = _passages(problem, self._way)
        self._has_large_gradients = problem.room.has_large_gradients
        self._stages = _lagging_stages(problem) if self._has_large_gradients else []
        self._has_w = any(stage.gradients != stage.backward for stage in self._stages)
        self._lags = GradientLags(self._stages, problem.num_microbatches, problem.num_ranks)
        delays = {(arc.before, arc.after): arc.ticks for arc in problem.arcs if not arc.distance}
        taken = [ticks[kind] for kind in self._way]
        self.unit = unit = max(1.0, sum(taken) / len(taken))
        self._ticks = [of_kind / unit for of_kind in taken]
        self._delays = [0.0, *(delays.get(pair, 0) / unit for pair in zip(self._way, self._way[1:], strict=False))]
        works = (sum(ticks[k] for k in kinds if not problem.first(k)) for kinds in problem.of_rank)
        self._interval = max(1.0, max(works) / unit)

    @cached_property
    def usual(self) -> list[DueBlock]:
        """The first blocks to try for small gradients; the last one runs micro-batches one after the other."""
        return [*self._usual, replace(self._usual[0], interval=self._alone, reserve=0.0, is_strict=True)]

    @property
    def first(self) -> list[DueBlock]:
        """The first blocks to try of all families, and the last of the usual ones."""
        return [*chain.from_iterable(self.families), self.usual[-1]]

    @cached_property
    def families(self) -> list[list[DueBlock]]:
        """All blocks of `first` but the last, grouped by family; without large gradients there is one family."""
        usual = self._usual
        if not self._has_large_gradients:
            return [usual]
        first, lags, few = usual[0], self._lags, (usual[0], usual[2])
        hasty = [*self._with_first_rounds(first)]
        if not self._stages:
            return [usual, hasty]
        middle = [lags.even(part * self._num_microbatches) for part in (0.0, 0.5, 1.0)]
        families = [
            usual,
            [replace(block, lags=late) for block in few for late in middle],
            [replace(block, lags=late) for block in few for late in lags.at_the_end()],
            [block for block in hasty if block.haste == 1.0],
            [block for block in hasty if block.haste < 1.0],
        ]
        if self._has_w:
            in_turn = product((1.0, 1.5, self._alone), (0.0, 1.0, 2.0))
            turns = [replace(first, interval=by, lags=lags.even(lag), is_w_in_turn=True) for by, lag in in_turn]
            families[3:3] = [turns]
            families += [[replace(block, is_w_in_turn=True) for block in hasty]]
        return families

    @property
    def _alone(self) -> float:
        """The interval with which micro-batches come one after the other."""
        return 2 * (sum(self._ticks) + sum(self._delays)) / self._interval

    @cached_property
    def _usual(self) -> list[DueBlock]:
        """The family of blocks for small gradients, which is always tried."""
        num_passages = self._passages[-1] + 1
        gaps, shifts = (0.0,) * num_passages, (0.0,) * len(self._way)
        of_passages = [tuple(stretch[i % 2] for i in range(num_passages)) for stretch in _STRETCHES]
        blocks = [
            DueBlock(stretches, gaps, 1.0, *_NO_ROUNDS, _RESERVE, *rules, shifts)
            for stretches, rules in product(of_passages, _RULES)
        ]
        blocks += [replace(block, round_size=self._num_ranks, haste=1.0) for block in blocks[: len(_RULES)]]
        far = self._num_microbatches * self._interval
        for at in range(1, num_passages):
            late = (*gaps[:at], far, *gaps[at + 1 :])
            blocks += [replace(block, gaps=late) for block in (blocks[0], blocks[2])]
        blocks += [replace(blocks[0], interval=interval) for interval in _INTERVALS]
        if self._has_messages:
            blocks += [replace(block, reserve=reserve) for block in (blocks[0], blocks[2]) for reserve in _RESERVES]
        return blocks

    def _with_first_rounds(self, block: DueBlock) -> Iterator[DueBlock]:
        """Yield variants of a block with other first rounds; the gradients come after the first round."""
        for num_first in range(1, min(self._num_microbatches, _MOST_IN_FIRST) + 1):
            for size, interval, haste in _FIRST_ROUNDS:
                rounds = replace(
                    block, interval=interval or self._alone, round_size=size, left_out=size - num_first, haste=haste
                )
                for lags in self._lags.of_one_chunk(self._lags.before(num_first, self._spans)):
                    yield replace(rounds, lags=lags)

    @cached_property
    def _spans(self) -> list[float]:
        """Delay from F to backward of a micro-batch on the shortest way, by stage [intervals]."""
        offsets = self._offsets(self._usual[0])
        return [(offsets[stage.backward] - offsets[stage.forward]) / self._interval for stage in self._stages]

    def changed(self, block: DueBlock, draw: Random, *, shifts_ops: bool, is_usual: bool) -> DueBlock:
        """Return a block with something changed at random, or now and then another one.

        Args:
            block: The block.
            draw: Source of randomness.
            shifts_ops: Whether single ops may be due later.
            is_usual: Whether it is changed as if gradients were small.
        """
        if draw.random() < 0.15:
            return self._drawn(block, draw, is_usual=is_usual)
        if self._has_messages and draw.random() < 0.1:
            return replace(block, reserve=max(0.0, block.reserve + draw.choice((-1.0, -0.5, 0.5, 1.0))))
        if self._stages and not is_usual and draw.random() < (0.3 if block.lags else 0.1):
            return self._with_other_lags(block, draw)
        at, chance = draw.randrange(len(block.gaps)), draw.random()
        if shifts_ops and draw.random() < 0.5:
            return replace(block, shifts=_changed_shifts(block.shifts, draw))
        if chance < 0.5:
            stretch = max(0.3, block.stretches[at] + draw.choice((-0.5, -0.25, 0.25, 0.5)))
            return replace(block, stretches=(*block.stretches[:at], stretch, *block.stretches[at + 1 :]))
        if chance < 0.8:
            far = self._interval * draw.randint(1, self._num_microbatches)
            gap = max(0.0, block.gaps[at] + draw.choice((-1.0, -0.5, 0.5, 1.0, 2.0, far, -far)))
            return replace(block, gaps=(*block.gaps[:at], gap, *block.gaps[at + 1 :]))
        if chance < 0.9:
            round_size, left_out, haste = self._drawn_rounds(draw, is_usual=is_usual)
            return replace(block, round_size=round_size, left_out=left_out, haste=haste)
        if chance < 0.95:
            return replace(block, interval=block.interval * draw.choice((0.9, 0.95, 1.05, 1.1)))
        if chance < 0.98:
            return replace(block, is_patient=not block.is_patient)
        return replace(block, is_strict=not block.is_strict)

    def _with_other_lags(self, block: DueBlock, draw: Random) -> DueBlock:
        if self._has_w and block.lags and draw.random() < 0.2:
            return replace(block, is_w_in_turn=not block.is_w_in_turn)
        return replace(block, lags=self._lags.changed(block.lags, draw, self._spans))

    def _drawn(self, block: DueBlock, draw: Random, *, is_usual: bool) -> DueBlock:
        """Return a block whose due dates are all drawn."""
        stretches = tuple(draw.choice((1.0, 1.0, 1.5, 2.0, 3.0)) for _ in block.stretches)
        gaps = tuple(draw.choice((0.0, 0.0, 1.0, 2.0)) for _ in block.gaps)
        interval, is_patient = draw.choice((0.8, 0.9, 1.0, 1.0, 1.1)), draw.random() < 0.5
        rounds, rules = self._drawn_rounds(draw, is_usual=is_usual), (is_patient, block.is_strict)
        return DueBlock(stretches, gaps, interval, *rounds, block.reserve, *rules, (0.0,) * len(block.shifts))

    def _drawn_rounds(self, draw: Random, *, is_usual: bool) -> tuple[int, int, float]:
        """Return random rounds: their micro-batches, how many fewer the first one has, and their haste; often none."""
        if draw.random() < 0.4:
            return _NO_ROUNDS
        round_size = draw.randint(2, 2 * self._num_ranks)
        left_out = draw.randrange(round_size)
        if self._has_large_gradients and not is_usual and draw.random() < 0.5:
            round_size = draw.randint(1, self._num_ranks)
            left_out = round_size - draw.randint(1, self._num_microbatches)
        return round_size, left_out, draw.choice((0.5, 0.75, 1.0))

    def _offsets(self, block: DueBlock) -> list[float]:
        """Return the due offset of each kind of op [mean op times]; an op is due later than the ops it waits for."""
        offsets, due, last = [0.0] * self._num_kinds, 0.0, 0.0
        for at, kind in enumerate(self._way):
            passage = self._passages[at]
            if at:
                is_same = passage == self._passages[at - 1]
                factor, gap = (block.stretches[passage], 0.0) if is_same else (1.0, block.gaps[passage])
                due += self._ticks[at - 1] * factor + self._delays[at] + gap
            last = max(last, due + block.shifts[at]) + _NEXT
            offsets[kind] = last
        for stage in self._stages if block.lags else ():
            if stage.gradients != stage.backward:
                offsets[stage.gradients] = offsets[stage.backward] + _NEXT / 2
        return offsets

    def dues(self, block: DueBlock) -> tuple[list[float], list[float], list[tuple[int, float]]]:
        """Return the due dates of micro-batch 0 by kind, the delays by micro-batch, and the lags of first W or B.

        A lag is a pair: a kind, and the delay of the op of this kind and micro-batch 0. All times are in units of the
        mean op time.
        """
        interval, left_out = block.interval * self._interval, block.left_out
        size, fewer = block.round_size, max(0, left_out)
        num_first = size - left_out
        places = [k if k < num_first else (k - num_first) % size - fewer for k in range(self._num_microbatches)]
        later = [interval * (k - block.haste * place) for k, place in enumerate(places)]
        return self._offsets(block), later, [(kind, lag * interval) for kind, lag in self._lags_of(block)]

    def _lags_of(self, block: DueBlock) -> Iterator[tuple[int, float]]:
        """Yield the lags of a block, by kind; a B lags at least as much as the B of the next stage, its source."""
        most = 0.0
        for stage, lag in reversed([*zip(self._stages, block.lags, strict=False)]):
            if stage.gradients == stage.backward:
                most = max(most, lag)
            yield stage.gradients, max(most, lag)


def _changed_shifts(shifts: Sequence[float], draw: Random) -> tuple[float, ...]:
    """Return the delays of due dates with a random change: of single ops, or of all ops from one on."""
    changed = [*shifts]
    for _ in range(draw.choice((1, 1, 2, 3))):
        first = draw.randrange(len(changed))
        last = first + 1 if draw.random() < 0.5 else len(changed)
        shift = draw.choice((-3.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0))
        changed[first:last] = [value + shift for value in changed[first:last]]
    return tuple(changed)


def _way(problem: OrderProblem) -> list[int]:
    """Return the forwards and backwards in the order in which a micro-batch goes through them."""
    merged = {*recomputed_before(problem).values()}
    places = {}
    for index, kind in enumerate(problem.kinds):
        if index not in merged and isinstance(kind.op, Compute) and kind.op.phase is not Phase.BACKWARD_WEIGHT:
            is_forward = kind.op.phase is Phase.FORWARD
            places[index] = (0, kind.op.stage) if is_forward else (1, -kind.op.stage)
    return sorted(places, key=places.__getitem__)


def _passages(problem: OrderProblem, way: list[int]) -> list[int]:
    """Return for each op of the way its number of earlier passages through the ranks, there or back."""
    num_stages = len(way) // 2
    return [
        place % num_stages // problem.num_ranks + place // num_stages * -(-num_stages // problem.num_ranks)
        for place in range(len(way))
    ]


def _lagging_stages(problem: OrderProblem) -> list[LaggingStage]:
    """Return the stages with W, and the stages with B if ranks have several stages, in order of the stages."""
    kinds = {op: kind for op, kind in problem.index_of.items() if isinstance(op, Compute)}
    phases = {Phase.BACKWARD_WEIGHT: Phase.BACKWARD_INPUT}
    if len(problem.room.stages) > problem.num_ranks:
        phases[Phase.BACKWARD] = Phase.BACKWARD
    stages = [
        LaggingStage(
            op.stage, kinds[Compute(Phase.FORWARD, op.stage, 0)], kinds[Compute(phases[op.phase], op.stage, 0)], kind
        )
        for op, kind in kinds.items()
        if op.phase in phases
    ]
    return sorted(stages)
