"""The board of the guards: messages between guards, on any machine, in torchrun's store."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import NamedTuple, final

from torch._C._distributed_c10d import PrefixStore, TCPStore

from pipesched.executor import NOBODY
from pipesched.executor.launch.early_drain import DrainAgreement, LeaveRequest
from pipesched.executor.launch.verdict_store import VERDICT, EndingCause, board_name, node_number

_PATIENCE = timedelta(seconds=5)
"""Longest time of one answer of the store, which starts before any rank."""
_ASKED = "stacks"
_DRAIN = "drain"


class Sighting(NamedTuple):
    """The position of a rank as its guard sees it, in ages, because clocks of machines differ.

    Attributes:
        number: Number of earlier sightings.
        place: Position in the op list; -1 before the first op.
        num_ops: Ops begun in total.
        at_op_s: Time since the current op began [s].
        whom: The rank that this rank waits for, `EVERYBODY`, `ITS_CHECKPOINT` or `NOBODY`.
        waits_s: Time since the wait began [s].
        is_stopped: Whether a signal has stopped the process.
        text: The current op as its list writes it; empty before the first op.
        is_asked: Whether the rank is asked to leave.
        proposed: The micro-batch proposed as the end of all lists, as the rank knows it.
        read: The farthest micro-batch that the rank has read, given that proposal.
    """

    number: int = 0
    place: int = -1
    num_ops: int = -1
    at_op_s: float = 0.0
    whom: int = NOBODY
    waits_s: float = 0.0
    is_stopped: bool = False
    text: str = ""
    is_asked: bool = False
    proposed: int = 0
    read: int = 0


@final
class GuardBoard:
    """Messages between the guards of all ranks.

    Raises:
        RuntimeError: The store is gone, here as in every method.
    """

    def __init__(self) -> None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=_PATIENCE, wait_for_workers=False)
        self._store = PrefixStore(board_name(), store)
        self._known: set[str] = set()

    def write(self, rank: int, sighting: Sighting) -> None:
        """Write the position of a rank."""
        self._store.set(f"rank{rank}", json.dumps(sighting))

    def read(self, ranks: Iterable[int]) -> dict[int, Sighting]:
        """Return the sightings of `ranks`, without the ranks that nobody has seen."""
        texts = self._texts({rank: f"rank{rank}" for rank in ranks})
        return {rank: Sighting(*json.loads(text)) for rank, text in texts.items()}

    def decide(self, text: str) -> EndingCause:
        """Write the cause of the end of the run; return the first cause that was written."""
        own = EndingCause(node_number(), text)
        return EndingCause.of(self._store.compare_set(VERDICT, "", own.value())) or own

    def verdict(self) -> EndingCause | None:
        """Return the cause of the end of the run, or None while the run continues."""
        return EndingCause.of(self._store.compare_set(VERDICT, "", ""))

    def agree_on_drain(self, agreement: DrainAgreement, sightings: Collection[Sighting], request: LeaveRequest) -> None:
        """Write the next state of the agreement on an early drain, if the run is to leave and all guards know the last.

        Args:
            agreement: The last state, as the calling guard knows it.
            sightings: Positions of all ranks.
            request: Decides when the run is drained.
        """
        is_late = request.is_late(is_asked=any(sighting.is_asked for sighting in sightings))
        if is_late and not agreement.decided and all(sighting.proposed == agreement.proposed for sighting in sightings):
            following = agreement.following(max(sighting.read for sighting in sightings), request)
            self._store.set(_DRAIN, json.dumps(following))

    def drain_agreement(self) -> DrainAgreement:
        """Return the last state of the agreement on an early drain."""
        return DrainAgreement(*json.loads(self._texts({0: _DRAIN}).get(0, "[]")))

    def ask_for_stacks(self) -> None:
        """Ask all guards for the stacks of their ranks."""
        self._store.set(_ASKED, "")

    def are_stacks_asked_for(self) -> bool:
        """Return whether stacks are requested."""
        return self._store.check([_ASKED])

    def write_stacks(self, rank: int, text: str) -> None:
        """Write the thread stacks of a rank."""
        self._store.set(f"stacks{rank}", text)

    def read_stacks(self, ranks: Iterable[int]) -> dict[int, str]:
        """Return the thread stacks of `ranks`, without the ranks whose guards have written none."""
        return self._texts({rank: f"stacks{rank}" for rank in ranks})

    def _texts(self, keys: dict[int, str]) -> dict[int, str]:
        """Return the values of `keys`, without missing keys: the store would wait for these."""
        for key in keys.values():
            if key not in self._known and self._store.check([key]):
                self._known.add(key)
        there = {number: key for number, key in keys.items() if key in self._known}
        values = self._store.multi_get([*there.values()]) if there else []
        return {number: value.decode() for number, value in zip(there, values, strict=True)}
