"""The discrete-event engine: a SimPy process per rank works through its op list.

    Compute       waits for the messages it needs, then occupies the device
    Overlap       waits for the messages of both; then they run at once until the costs' `overlap` of the shorter is
                  done, and the rest of them one after the other: longer + (1 - overlap) * shorter
    Send, Recv    post and continue; a blocking Send keeps its rank until the message has left
    Reduce        posts and continues; the all-reduce starts when all Reduces of the group are posted, and its links and
                  shared NICs are free; a Reduce of other things than gradients first waits for the Reduce of its stage
                  before it
    Step          waits for the Reduce of its stage before it, then occupies the device; the end of a list waits for all
    Average       occupies the device, as does every other WeightsOp
    Unshard       posts and continues; gathers of a rank run one after the other, and the next computation of the stage
                  waits
    Reshard       takes no time
    handing over  occupies the device too, if it takes time on the cluster: see `simulator.hand_over`

SimPy's `run` returns quietly while a process still waits, so a deadlock would look finished: the engine looks for
unfinished ranks, and reports them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, assert_never, final

import numpy as np
from simpy import Environment, Event

from pipesched.profiles.clusters import AllReduce, Cluster, flat
from pipesched.profiles.costs import StageCosts, WorkPiece, reduction_of
from pipesched.schedules import HandOver, NotRunnableError, Schedule, ScheduleError, Timeline
from pipesched.schedules.columns import SpanColumns, spread
from pipesched.schedules.common import paused_collector
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import (
    Compute,
    Group,
    Message,
    Op,
    Overlap,
    Phase,
    PostOp,
    Recv,
    Reduce,
    Reshard,
    Send,
    StageOp,
    Step,
    Unshard,
    WeightsOp,
    awaits_sum,
    computes,
    gives,
    needs,
)
from pipesched.schedules.weights import looks_ahead, stashing_steps
from pipesched.simulator import HandOverWork, NetworkOptions, SimulationError, after_op, of_post, of_receipt
from pipesched.simulator.engine.conditions import (
    AS_MODELLED,
    OpSeconds,
    jitter_factors,
    require_given,
    require_simulable,
)
from pipesched.simulator.engine.device import SimulatedDevice, simulated_devices
from pipesched.simulator.engine.network import Collectives, Network, Transfer, TransferTimes


def simulate_lists(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster | None = None,
    *,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
    jitter: float = 0.0,
    seed: int = 0,
    given: Sequence[Sequence[OpSeconds]] | None = None,
) -> Timeline:
    """Predict the time of every op of `schedule`.

    Args:
        schedule: Lowered or not; compute-only lists are lowered first.
        costs: Seconds and bytes of every stage.
        cluster: Devices and links, or None for equal devices and links that take no time.
        network: How messages go.
        jitter: Sigma of a log-normal factor on the seconds of each op; 0 for none. It is drawn in the order of the
            rank's list, so that the same op has the same factor whatever it waits for.
        seed: Seed of the factors.
        given: Seconds of single ops in place of the model's seconds, or None: ``given[rank][index]`` is for that op of
            the lowered lists.

    Returns:
        The timeline, source ``"predicted"``, from 0 s.

    Raises:
        ScheduleError: A message is used on a rank that neither makes nor receives it, or the two sides of a channel
            name different messages.
        SimulationError: Costs or devices are missing, a rule or the jitter is invalid, `given` does not match the
            lists, the lists deadlock, or only one side of a channel posts a message.
        ProfileError: The costs lack the seconds of a phase of the lists.
    """
    cluster = flat(max(schedule.rank_to_device, default=-1) + 1) if cluster is None else cluster
    require_simulable(schedule, costs, cluster, network, jitter)
    lowered = lower(schedule)
    if given is not None:
        require_given(given, lowered)
    try:
        with paused_collector():
            return _Run(lowered, costs, cluster, network, jitter, seed, given).timeline()
    except ScheduleError as error:
        raise type(error)(f"{schedule.name}: {error}") from None


@dataclass(frozen=True, slots=True)
class _FinishedOps:
    """The ops that a rank has finished, in the order of its list.

    Attributes:
        times_s: For each op, the times at which the rank reached it, and at which it started and ended [s].
        posts: The Sends, Recvs, Reduces and Unshards by their places, and their times, which are known only later.
    """

    times_s: list[tuple[float, float, float]] = field(default_factory=list)
    posts: list[tuple[int, PostOp | Unshard, TransferTimes]] = field(default_factory=list)

    def all_times_s(self) -> list[tuple[float, float, float]]:
        """Return all times, after all posted transfers and reductions are over."""
        for place, _, times in self.posts:
            start_s, over_s = times.start_s, times.over_s
            assert start_s is not None, "a channel without an unmet side has started all its transfers"
            assert over_s is not None
            self.times_s[place] = self.times_s[place][0], start_s, over_s
        return self.times_s


@final
class _Run:
    def __init__(
        self,
        schedule: Schedule,
        costs: StageCosts,
        cluster: Cluster,
        network: NetworkOptions,
        jitter: float,
        seed: int,
        given: Sequence[Sequence[OpSeconds]] | None,
    ) -> None:
        self._schedule = schedule
        self._costs = costs
        self._cluster = cluster
        self._options = network
        self._jitter = jitter
        self._seed = seed
        self._given = given
        self._env = Environment()
        self._collectives = Collectives(schedule.summands)
        self._all_reduces: dict[Group, AllReduce] = {}
        self._devices = simulated_devices(self._env, cluster, schedule.rank_to_device, network.slowdown)
        on_start = self._slow_down if network.slowdown else None
        self._network = Network(self._env, costs, cluster, schedule.rank_to_device, network, on_start)
        self._pieces_of: dict[tuple[Phase, int, bool | int], tuple[WorkPiece, ...]] = {}
        self._made: list[set[Message | None]] = [set() for _ in schedule.ops]
        self._has_hand_over = cluster.has_hand_over
        self._hand_overs: list[list[HandOver]] = [[] for _ in schedule.ops]
        self._done = [_FinishedOps() for _ in schedule.ops]

    def timeline(self) -> Timeline:
        processes = [
            self._env.process(self._rank(rank, self._devices[device]))
            for rank, device in enumerate(self._schedule.rank_to_device)
        ]
        self._env.run()
        stuck = [rank for rank, process in enumerate(processes) if process.is_alive]
        if stuck:
            waits = ", ".join(self._wait(rank) for rank in stuck)
            raise SimulationError(f"{self._schedule.name}: deadlock: {waits}; check the schedule")
        unmet = list(self._network.unmet())
        if unmet:
            more = f"; and {len(unmet) - 3} more" if len(unmet) > 3 else ""
            raise SimulationError(f"{self._schedule.name}: {'; '.join(unmet[:3])}{more}; check the schedule")
        spans = self._spans()
        hand_overs = tuple(chain.from_iterable(self._hand_overs))
        timeline = Timeline(
            self._schedule.name, "predicted", spans, self._schedule.rank_to_device, hand_overs=hand_overs
        )
        if not (math.isfinite(self._env.now) or math.isfinite(timeline.makespan_s)):
            raise SimulationError(
                f"{self._schedule.name}: got a makespan of {timeline.makespan_s} s, expected a finite one; "
                "try smaller costs or faster links"
            )
        return timeline

    def _rank(  # noqa: C901 -- one arm per word
        self, rank: int, device: SimulatedDevice
    ) -> Generator[Event, Any, None]:
        """Work through the list of one rank."""
        env, devices, times_s = self._env, self._schedule.rank_to_device, self._done[rank].times_s
        reductions: dict[int, TransferTimes] = {}
        gathers: dict[int, TransferTimes] = {}
        factors = jitter_factors(self._jitter, self._seed, rank)
        stashing = stashing_steps(self._schedule.ops[rank])
        givens = repeat(AS_MODELLED) if self._given is None else self._given[rank]
        for index, (op, given) in enumerate(zip(self._schedule.ops[rank], givens, strict=False)):
            posted_s = env.now
            match op:
                case Send() | Recv() | Reduce():
                    yield from self._post_in_turn(rank, device, op, given, reductions)
                    continue
                case Unshard():
                    gathers[op.stage] = yield from self._gather(rank, op, given)
                    continue
                case Compute() | Overlap():
                    for gather in [gathers.pop(part.stage) for part in computes(op) if part.stage in gathers]:
                        if (over := gather.over(env)) is not None:
                            yield over
                    yield from self._receive(rank, device, op, given)
                    pieces = self._pieces(op, factors)
                    self._made[rank].update(map(gives, computes(op)))
                case WeightsOp():
                    reduction = reductions.pop(op.stage, None) if isinstance(op, Step) else None
                    if reduction is not None and (over := reduction.over(env)) is not None:
                        yield over
                    if given.before_s:
                        yield from self._own(rank, op, given.before_s)
                    self._require_stage(op)
                    pieces = tuple(
                        WorkPiece(seconds * next(factors), utilisation)
                        for seconds, utilisation in self._costs.pieces(op, copies=index in stashing)
                    )
                case Reshard():
                    pieces = ()
                case _:
                    assert_never(op)
            start_s = env.now
            if given.work_s is None:
                for seconds, utilisation in pieces:
                    yield device.run(seconds, utilisation)
            else:  # it passes as it is, whoever else is on the device
                yield env.timeout(given.work_s)
            times_s.append((posted_s, start_s, env.now))
            if self._has_hand_over and given.after_s is None and (work := after_op(rank, op, devices)) is not None:
                yield from self._hand_over(rank, device, op, work)
            if given.after_s:
                yield from self._own(rank, op, given.after_s)
        for times in reductions.values():
            if (over := times.over(env)) is not None:
                yield over

    def _receive(
        self, rank: int, device: SimulatedDevice, op: Compute | Overlap, given: OpSeconds
    ) -> Generator[Event, Any, None]:
        """Wait for the messages of an op, and take each over."""
        for transfer in self._awaited(rank, op):
            if (over := transfer.times.over(self._env)) is not None:
                yield over
            self._made[rank].add(transfer.message)
            if self._has_hand_over and given.before_s is None:
                receipt = of_receipt(rank, transfer.source, transfer.message, self._schedule.rank_to_device)
                yield from self._hand_over(rank, device, op, receipt)
        if given.before_s:
            yield from self._own(rank, op, given.before_s)

    def _post_in_turn(
        self, rank: int, device: SimulatedDevice, op: PostOp, given: OpSeconds, reductions: dict[int, TransferTimes]
    ) -> Generator[Event, Any, None]:
        """Post a rank's side of a message or reduction, and wait until a blocking Send has left."""
        posted_s, done = self._env.now, self._done[rank]
        if self._has_hand_over and given.before_s is None and not isinstance(op, Reduce):
            yield from self._hand_over(rank, device, op, of_post(rank, op, self._schedule.rank_to_device))
        if awaits_sum(op) and (before := reductions.get(op.stage)) and (over := before.over(self._env)) is not None:
            yield over
        if given.before_s:
            yield from self._own(rank, op, given.before_s)
        times = self._post(rank, op, given.late_s)
        done.posts.append((len(done.times_s), op, times))
        done.times_s.append((posted_s, math.nan, math.nan))
        if isinstance(op, Reduce):
            reductions[op.stage] = times
        elif self._options.sends == "blocking" and isinstance(op, Send):
            before_s = self._network.latency_s(rank, op.peer) if self._options.protocol == "eager" else 0.0
            if (over := times.over(self._env, before_s)) is not None:
                yield over
        if given.after_s:
            yield from self._own(rank, op, given.after_s)

    def _gather(self, rank: int, op: Unshard, given: OpSeconds) -> Generator[Event, Any, TransferTimes]:
        """Start the gather of a stage's weights, and return its times."""
        posted_s, done = self._env.now, self._done[rank]
        self._require_stage(op)
        if given.before_s:
            yield from self._own(rank, op, given.before_s)
        seconds = self._costs.stages[op.stage].unshard_s if given.work_s is None else given.work_s
        times = self._network.gather(rank, seconds)
        done.posts.append((len(done.times_s), op, times))
        done.times_s.append((posted_s, math.nan, math.nan))
        if given.after_s:
            yield from self._own(rank, op, given.after_s)
        return times

    def _post(self, rank: int, op: PostOp, late_s: float) -> TransferTimes:
        """Post a rank's side of a message or reduction; never waits."""
        if isinstance(op, Send):
            return self._network.send(rank, op).times
        if isinstance(op, Recv):
            return self._network.recv(rank, op, late_s).times
        times, can_start = self._collectives.post(rank, op, late_s)
        if can_start:
            self._begin_reduction(times, op)
        return times

    def _own(self, rank: int, op: Op, seconds: float) -> Generator[Event, Any, None]:
        """Let a rank wait for some seconds without using its device."""
        start_s = self._env.now
        yield self._env.timeout(seconds)
        self._hand_overs[rank].append(HandOver(rank, op, start_s, self._env.now))

    def _hand_over(self, rank: int, device: SimulatedDevice, op: Op, work: HandOverWork) -> Generator[Event, Any, None]:
        """Keep the rank and its device for the time of a hand-over."""
        piece = work.piece(self._costs, self._cluster)
        if piece.seconds:
            start_s = self._env.now
            yield device.run(piece.seconds, piece.utilisation)
            self._hand_overs[rank].append(HandOver(rank, op, start_s, self._env.now))

    def _begin_reduction(self, times: TransferTimes, op: Reduce) -> None:
        if op.group not in self._all_reduces:
            self._require_stage(op)
            self._all_reduces[op.group] = reduction_of(op.group, self._schedule, self._costs, self._cluster)
        self._network.reduce(times, self._all_reduces[op.group])

    def _slow_down(self, times: TransferTimes, devices: Sequence[int]) -> None:
        """Slow the devices while a message or reduction between them is in flight."""

        def slow() -> Generator[Event, Any, None]:
            assert times.start_s is not None
            yield self._env.timeout(max(0.0, times.start_s - self._env.now))
            for device in devices:
                self._devices[device].begin_transfer()
            if (over := times.over(self._env)) is not None:
                yield over
            for device in devices:
                self._devices[device].end_transfer()

        self._env.process(slow())

    def _awaited(self, rank: int, op: Compute | Overlap) -> list[Transfer]:
        """Return the transfers that `op` waits for; a message from the rank itself needs no transfer."""
        made, transfers = self._made[rank], []
        for part in computes(op):
            for message in needs(part, self._schedule.num_stages):
                if message in made:
                    continue
                transfer = self._network.incoming(rank, message)
                if transfer is None:
                    raise NotRunnableError(
                        f"rank {rank}: {op} waits forever for {message.payload.name.lower()} {message.microbatch} of "
                        f"stage {message.stage}, expected this rank to compute or receive it before; check the schedule"
                    )
                transfers.append(transfer)
        return transfers

    def _pieces(self, op: Compute | Overlap, factors: Iterator[float]) -> tuple[WorkPiece, ...]:
        """Return the pieces that run one after the other; each of two ops that overlap has a factor of its own."""
        if isinstance(op, Overlap):
            return self._costs.beside(*self._pieces(op.first, factors), *self._pieces(op.second, factors))
        key = (op.phase, op.stage, op.lookahead and looks_ahead(op))
        pieces = self._pieces_of.get(key)
        if pieces is None:
            pieces = self._pieces_of[key] = self._costs.pieces(op)
        if not self._jitter:
            return pieces
        return (WorkPiece(pieces[0].seconds * next(factors), pieces[0].utilisation),)

    def _require_stage(self, op: StageOp) -> None:
        if not 0 <= op.stage < self._schedule.num_stages:
            raise ScheduleError(
                f"{op}: got stage {op.stage}, expected a stage below {self._schedule.num_stages}; check the schedule"
            )

    def _spans(self) -> SpanColumns:
        ops, times_s = self._schedule.columns, [*chain.from_iterable(done.all_times_s() for done in self._done)]
        columns = zip(*times_s, strict=True) if times_s else ((), (), ())
        posted_s, starts_s, ends_s = (spread(ops.codes, np.array(column, np.float64)) for column in columns)
        return SpanColumns(ops, posted_s, starts_s, ends_s, self._schedule.ops)

    def _wait(self, rank: int) -> str:
        """Return the text of a stuck rank's wait."""
        row, at = self._schedule.ops[rank], len(self._done[rank].times_s)
        open_posts = [post for post in self._done[rank].posts if post[2].end_s is None]
        if self._options.sends == "blocking" and open_posts:
            place, send, _ = open_posts[-1]
            if isinstance(send, Send) and place == at - 1:
                return f"rank {rank} at {send} waits for {Recv(send.message, rank)} of rank {send.peer}"
        op = row[at] if at < len(row) else None
        if op is None or isinstance(op, Step | Reduce):
            reduces = ((post, times) for _, post, times in open_posts if isinstance(post, Reduce))
            first, times = next((post, times) for post, times in reduces if op is None or post.stage == op.stage)
            absent = " and ".join(f"rank {other}" for other in self._collectives.absent(times))
            return f"rank {rank} at {op or 'the end of its list'} waits for {first} of {absent}"
        assert isinstance(op, Compute | Overlap), "nothing else waits"
        unsent = [transfer for transfer in self._awaited(rank, op) if transfer.times.end_s is None]
        sends = " and ".join(f"{Send(transfer.message, rank)} of rank {transfer.source}" for transfer in unsent)
        return f"rank {rank} at {op} waits for {sends}"
