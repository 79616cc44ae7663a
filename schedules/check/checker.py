"""The checker: finds the faults of op lists that cannot run, with rank, op and place.

`check.structure` and `check.gradient_flow` look for missing and misplaced ops, and `check.matching` for messages that
do not meet. `progress` finds ranks that wait forever, and `deadlock` explains them. These two depend on the backend,
which decides which Sends and Recvs wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from pipesched.schedules import NotRunnableError, Schedule, ScheduleError
from pipesched.schedules.check.completeness import is_complete
from pipesched.schedules.check.finding import Finding
from pipesched.schedules.check.gradient_flow import updates
from pipesched.schedules.check.matching import matching
from pipesched.schedules.check.structure import misplaced_gathers, structure, unreached_versions
from pipesched.schedules.lowering import lower, lower_for_torch
from pipesched.schedules.semantics import Communication, Deadlock, deadlocks


class MessageBackend(StrEnum):
    """A backend: its way to send and queue messages."""

    GLOO = "gloo"
    NCCL = "nccl"
    NCCL_PAIR = "nccl-pair"
    NCCL_RANK = "nccl-rank"
    NCCL_BATCHED = "nccl-batched"
    BUFFERED = "buffered"


Lowering: TypeAlias = Callable[[Schedule], Schedule]


@dataclass(frozen=True, slots=True)
class BackendTraits:
    """The behaviour of a backend, its users, and its way to insert Sends and Recvs into lists without them."""

    communication: Communication
    text: str
    lower: Lowering = lower


BACKENDS: Mapping[MessageBackend, BackendTraits] = {
    MessageBackend.GLOO: BackendTraits(Communication.CHANNEL, "isend and irecv on CPUs: pipesched's executor, PyTorch"),
    MessageBackend.NCCL: BackendTraits(Communication.DEVICE, "one communicator per direction: pipesched's executor"),
    MessageBackend.NCCL_PAIR: BackendTraits(
        Communication.PAIR, "one per pair of ranks: PyTorch's isend and irecv", lower_for_torch
    ),
    MessageBackend.NCCL_RANK: BackendTraits(
        Communication.RANK, "one for all: PyTorch's isend and irecv, group bound to a device", lower_for_torch
    ),
    MessageBackend.NCCL_BATCHED: BackendTraits(
        Communication.BATCHED, "one for all, neighbours at once: PyTorch's batch_isend_irecv", lower_for_torch
    ),
    MessageBackend.BUFFERED: BackendTraits(Communication.BUFFERED, "sends that wait for nobody"),
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """The faults of a schedule, by backend.

    Attributes:
        lists: The lists of the findings: the given lists, or lowered ones for this backend.
        findings: Findings by backend, empty for a backend that can run the schedule.
    """

    lists: Mapping[MessageBackend, Schedule]
    findings: Mapping[MessageBackend, tuple[Finding, ...]]


def find_faults(schedule: Schedule) -> tuple[Finding, ...]:
    """Return every fault of `schedule`, lowered or not. A schedule without a fault runs to its end in our executor."""
    return (*_faults(schedule), *map(_finding, deadlocks(schedule)))


def judge(schedule: Schedule) -> Judgement:
    """Return every fault of `schedule` on every backend; faultless lists without communication are lowered first."""
    faults = _faults(schedule)
    if not schedule.is_lowered:
        faults += map(_finding, deadlocks(schedule))
        if faults:
            return Judgement(dict.fromkeys(MessageBackend, schedule), dict.fromkeys(MessageBackend, tuple(faults)))
    lowered: dict[Lowering, Schedule] = {
        way: schedule if schedule.is_lowered else way(schedule) for way in (lower, lower_for_torch)
    }
    lists = {backend: lowered[traits.lower] for backend, traits in BACKENDS.items()}
    deadlocks_of = {way: _deadlocks_by_communication(lists) for way, lists in lowered.items()}
    return Judgement(
        lists,
        {
            backend: (*faults, *map(_finding, deadlocks_of[traits.lower][traits.communication]))
            for backend, traits in BACKENDS.items()
        },
    )


def require_runnable(schedule: Schedule) -> None:
    """Refuse a schedule with faults.

    Raises:
        NotRunnableError: The schedule has faults; the message has the first ones in one line.
    """
    if is_complete(schedule):
        with suppress(ScheduleError):
            lower(schedule)  # which works all lists through, and is kept
            return
    findings = find_faults(schedule)
    if findings:
        shown = "; ".join(str(finding) for finding in findings[:3])
        more = f"; and {len(findings) - 3} more" if len(findings) > 3 else ""
        raise NotRunnableError(f"{schedule.name}: {shown}{more}")


def _faults(schedule: Schedule) -> list[Finding]:
    return [
        *structure(schedule),
        *misplaced_gathers(schedule),
        *unreached_versions(schedule),
        *updates(schedule),
        *matching(schedule),
    ]


def _deadlocks_by_communication(lowered: Schedule) -> dict[Communication, tuple[Deadlock, ...]]:
    reasons_of = {Communication.BATCHED: deadlocks(lowered, Communication.BATCHED)}
    reasons: tuple[Deadlock, ...] | None = None
    for communication in (
        Communication.RANK, Communication.PAIR, Communication.DEVICE, Communication.CHANNEL, Communication.BUFFERED,
    ):  # fmt: skip
        # each waits for less than the one before it: where that comes to its end, so does this
        reasons = reasons if reasons == () else deadlocks(lowered, communication)
        reasons_of[communication] = reasons
    return reasons_of


def _finding(deadlock: Deadlock) -> Finding:
    first = deadlock.links[0]
    return Finding("progress", first.rank, first.index, str(deadlock), deadlock)
