"""The op lists under SimPy: a process per rank, and to wait is to yield.

    Compute       waits for the messages it needs, then occupies the device
    Overlap       waits for the messages of both; then they run at once until the costs' `overlap` of the shorter is
                  done, and what is left of them one after the other: longer + (1 - overlap) * shorter
    Send, Recv    post and go on
    Reduce        waits for the stage's replicas, then for shared NICs, then for a ring all-reduce of its gradients
    Step, Average occupy the device
    Unshard, Reshard    take no time

SimPy's `run` returns quietly while a process still waits, so a deadlock would look finished: the ranks that are not
over are looked for, and reported.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, assert_never, final, get_args

from simpy import Environment, Event

from profiles.cluster import Cluster, Link, flat
from profiles.stage_costs import StageCost, StageCosts
from schedules.lower import lower
from schedules.op import (
    Average,
    Compute,
    Message,
    Overlap,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    computes,
    gives,
    needs,
)
from schedules.schedule import Schedule, ScheduleError
from schedules.timeline import Span, Timeline
from schedules.versions import looks_ahead, stashing_steps
from simulator.device import RunOp, SharedDevice, own_device
from simulator.errors import SimulationError
from simulator.network import Collectives, Network, Protocol, Transfer

_MAX_JITTER = 10.0
"""Far beyond any machine; much more would overflow."""


def simulate(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster | None = None,
    *,
    protocol: Protocol = "rendezvous",
    jitter: float = 0.0,
    seed: int = 0,
) -> Timeline:
    """Predict the time of every op of `schedule`.

    Args:
        schedule: Lowered or not; compute-only lists are lowered first.
        costs: Seconds and bytes of every stage.
        cluster: Devices and links; None: equal devices and links that take no time.
        protocol: Whether a transfer waits for the receiver's buffer (``"rendezvous"``) or not (``"eager"``).
        jitter: Sigma of a log-normal factor on the seconds of each op; 0 for none. It is drawn in the order of the
            rank's list, so that the same op has the same factor whatever it waits for.
        seed: Of the factors.

    Returns:
        The timeline, source ``"predicted"``, from 0 s.

    Raises:
        ScheduleError: A message is used on a rank that neither makes nor receives it, or the two sides of a channel
            name different messages.
        SimulationError: Costs or devices are missing, the protocol or the jitter is none, the lists deadlock, or only
            one side of a channel posts a message.
        ProfileError: The costs do not say the seconds of a phase that the lists have.
    """
    cluster = flat(max(schedule.rank_to_device, default=-1) + 1) if cluster is None else cluster
    require_possible(schedule, costs, cluster, protocol, jitter)
    run = _Run(lower(schedule), costs, cluster, protocol, jitter, seed)
    try:
        return run.timeline()
    except ScheduleError as error:
        raise ScheduleError(f"{schedule.name}: {error}") from None


def require_possible(
    schedule: Schedule, costs: StageCosts, cluster: Cluster, protocol: Protocol, jitter: float
) -> None:
    """Refuse what cannot be simulated, all faults in one line.

    Raises:
        SimulationError: Costs or devices are missing, or an option is out of its range.
    """
    faults = []
    if schedule.num_stages > costs.num_stages:
        faults.append(
            f"got costs ({costs.origin}) of {costs.num_stages} stages, expected {schedule.num_stages}; "
            "partition the model into as many stages as the schedule has"
        )
    num_devices = max(schedule.rank_to_device, default=-1) + 1
    if num_devices > len(cluster.devices):
        faults.append(
            f"got a cluster ({cluster.origin}) of {len(cluster.devices)} devices, expected {num_devices}; "
            "add devices or use fewer ranks"
        )
    if protocol not in get_args(Protocol):
        faults.append(f"protocol: got {protocol!r}, expected {' or '.join(get_args(Protocol))}")
    if not 0 <= costs.overlap <= 1:
        faults.append(f"got costs ({costs.origin}) of overlap {costs.overlap}, expected 0 to 1; it is a share")
    if not 0 <= jitter <= _MAX_JITTER:
        faults.append(f"jitter: got {jitter}, expected 0 to {_MAX_JITTER:g}; it is the sigma of a log-normal factor")
    if faults:
        raise SimulationError(f"{schedule.name}: " + "; ".join(faults))


@dataclass(frozen=True, slots=True)
class _Posted:
    """A Send or Recv whose times are known only later."""

    op: Send | Recv
    posted_s: float
    transfer: Transfer


@final
class _Run:
    def __init__(
        self, schedule: Schedule, costs: StageCosts, cluster: Cluster, protocol: Protocol, jitter: float, seed: int
    ) -> None:
        self._schedule = schedule
        self._costs = costs
        self._cluster = cluster
        self._jitter = jitter
        self._seed = seed
        self._env = Environment()
        self._members = reducers(schedule)
        self._collectives = Collectives(self._env, self._members)
        self._network = Network(self._env, costs, self._link_of, protocol, schedule.rank_to_device, self._nics_of)
        self._seconds: dict[tuple[Phase, int, bool], float] = {}
        self._made: list[set[Message | None]] = [set() for _ in schedule.ops]
        self._done: list[list[Span | _Posted]] = [[] for _ in schedule.ops]

    def timeline(self) -> Timeline:
        devices = self._devices()
        processes = [
            self._env.process(self._rank(rank, devices[device]))
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
        spans = tuple(span for rank in range(len(processes)) for span in self._spans(rank))
        timeline = Timeline(self._schedule.name, "predicted", spans, self._schedule.rank_to_device)
        if not math.isfinite(timeline.makespan_s):
            raise SimulationError(
                f"{self._schedule.name}: got a makespan of {timeline.makespan_s} s, expected a finite one; "
                "try smaller costs or faster links"
            )
        return timeline

    def _rank(self, rank: int, run_op: RunOp) -> Generator[Event, Any, None]:
        """Work through the list of one rank."""
        env, network = self._env, self._network
        done, made = self._done[rank], self._made[rank]
        factors = self._factors(rank)
        stashing = stashing_steps(self._schedule.ops[rank])
        for index, op in enumerate(self._schedule.ops[rank]):
            posted_s = env.now
            match op:
                case Compute() | Overlap():
                    for transfer in self._awaited(rank, op):
                        yield from network.arrival(transfer)
                    start_s = env.now
                    for seconds, utilisation in self._pieces(op, factors):
                        yield run_op(seconds, utilisation)
                    made.update(map(gives, computes(op)))
                case Send():
                    done.append(_Posted(op, posted_s, network.send(rank, op)))
                    continue
                case Recv():
                    done.append(_Posted(op, posted_s, network.recv(rank, op)))
                    continue
                case Reduce():
                    post = partial(network.reduce, self._members[op.stage], self._cost(op).weight_bytes)
                    wait_s, reduce_s = yield from self._collectives.gather(rank, op.stage, post)
                    start_s = env.now + wait_s
                    yield env.timeout(wait_s + reduce_s)
                case Step() | Average():
                    start_s, cost = posted_s, self._cost(op)
                    seconds = cost.step_s if isinstance(op, Step) else cost.average_s
                    seconds += cost.copy_s if index in stashing else 0.0
                    yield run_op(seconds * next(factors), cost.utilisation)
                case Unshard() | Reshard():
                    start_s = posted_s
                case _:
                    assert_never(op)
            done.append(Span(rank, op, posted_s, start_s, env.now))

    def _awaited(self, rank: int, op: Compute | Overlap) -> Iterator[Transfer]:
        """Yield the transfers that `op` waits for; what the rank made itself is just there."""
        for part in computes(op):
            for message in needs(part, self._schedule.num_stages):
                if message in self._made[rank]:
                    continue
                transfer = self._network.incoming(rank, message)
                if transfer is None:
                    raise ScheduleError(
                        f"rank {rank}: {op} waits forever for {message.payload.name.lower()} {message.microbatch} of "
                        f"stage {message.stage}, expected it to be made or received by this rank before; "
                        "check the schedule"
                    )
                yield transfer

    def _pieces(self, op: Compute | Overlap, factors: Iterator[float]) -> tuple[tuple[float, float], ...]:
        """Return (seconds, utilisation) of what runs one after the other: the op, or the three pieces of an Overlap."""
        if isinstance(op, Compute):
            return ((self._seconds_of(op) * next(factors), self._costs.stages[op.stage].utilisation),)
        (first_s, first), (second_s, second) = (*self._pieces(op.first, factors), *self._pieces(op.second, factors))
        both_s = self._costs.overlap * min(first_s, second_s)
        both = min(1.0, first + second)
        return ((both_s, both), (first_s - both_s, first), (second_s - both_s, second))

    def _seconds_of(self, op: Compute) -> float:
        key = (op.phase, op.stage, looks_ahead(op))
        seconds = self._seconds.get(key)
        if seconds is None:
            seconds = self._seconds[key] = self._costs.seconds(op)
        return seconds

    def _cost(self, op: Step | Reduce | Average) -> StageCost:
        if not 0 <= op.stage < self._schedule.num_stages:
            raise ScheduleError(f"{op}: expected a stage below {self._schedule.num_stages}; check the schedule")
        return self._costs.stages[op.stage]

    def _factors(self, rank: int) -> Iterator[float]:
        """Yield a factor for each op in turn; a rank's do not depend on the other ranks."""
        if self._jitter == 0:
            return repeat(1.0)
        draw = random.Random(f"{self._seed} {rank}").lognormvariate
        return (draw(0.0, self._jitter) for _ in repeat(None))

    def _devices(self) -> dict[int, RunOp]:
        mapping = self._schedule.rank_to_device
        devices: dict[int, RunOp] = {}
        for device in set(mapping):
            speed = self._cluster.devices[device].speed
            shared = mapping.count(device) > 1
            devices[device] = SharedDevice(self._env, speed).run if shared else own_device(self._env, speed)
        return devices

    def _link_of(self, source: int, target: int) -> Link:
        mapping = self._schedule.rank_to_device
        return self._cluster.link(mapping[source], mapping[target])

    def _nics_of(self, source: int, target: int) -> tuple[int | None, int | None]:
        mapping = self._schedule.rank_to_device
        return self._cluster.nics_between(mapping[source], mapping[target])

    def _spans(self, rank: int) -> Iterator[Span]:
        for entry in self._done[rank]:
            if isinstance(entry, Span):
                yield entry
                continue
            start_s, arrival_s = entry.transfer.start_s, entry.transfer.arrival_s
            assert start_s is not None, "a channel without an unmet side has started all its transfers"
            assert arrival_s is not None
            yield Span(rank, entry.op, entry.posted_s, start_s, arrival_s)

    def _wait(self, rank: int) -> str:
        """Say what a stuck rank waits for."""
        op = self._schedule.ops[rank][len(self._done[rank])]
        if isinstance(op, Reduce):
            absent = " and ".join(f"rank {other}" for other in self._collectives.absent(op.stage))
            return f"rank {rank} at {op} waits for {op} of {absent}"
        assert isinstance(op, Compute | Overlap), "nothing else waits"
        unsent = [transfer for transfer in self._awaited(rank, op) if transfer.arrival_s is None]
        sends = " and ".join(f"{Send(each.message, rank)} of rank {each.source}" for each in unsent)
        return f"rank {rank} at {op} waits for {sends}"


def reducers(schedule: Schedule) -> dict[int, tuple[int, ...]]:
    """Return, for each stage that is reduced, the ranks that reduce it."""
    members: dict[int, list[int]] = {}
    for rank, row in enumerate(schedule.ops):
        for stage in {op.stage for op in row if isinstance(op, Reduce)}:
            members.setdefault(stage, []).append(rank)
    return {stage: tuple(ranks) for stage, ranks in members.items()}
