"""The board of the guards: what they leave for each other in torchrun's store, whichever machines they are on."""

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
"""How long one answer of the store may take: it is there before any rank is."""
_ASKED = "stacks"
_DRAIN = "drain"


class Sighting(NamedTuple):
    """Where a rank is, as its guard sees it; clocks of machines differ, so these are ages.

    Attributes:
        number: How many sightings came before.
        place: The position in its list; -1 before its first op.
        num_ops: How many ops it has begun in all.
        at_op_s: For how long it is at its op [s].
        whom: The rank that it waits for, `EVERYBODY`, `ITS_CHECKPOINT` or `NOBODY`.
        waits_s: For how long [s].
        is_stopped: Whether its process is stopped by a signal.
        text: The op, as its list has it; empty before the first one.
        is_asked: Whether the rank was told that the run is to leave.
        proposed: The micro-batch that it knows to be proposed as the end of all lists.
        read: How far it has read lists, knowing that.
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
    """What the guards of all ranks have told each other.

    Raises:
        RuntimeError: The store is gone, here as in every method.
    """

    def __init__(self) -> None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=_PATIENCE, wait_for_workers=False)
        self._store = PrefixStore(board_name(), store)
        self._known: set[str] = set()

    def write(self, rank: int, sighting: Sighting) -> None:
        """Say where a rank is."""
        self._store.set(f"rank{rank}", json.dumps(sighting))

    def read(self, ranks: Iterable[int]) -> dict[int, Sighting]:
        """Return where ranks are, of those that somebody has seen."""
        texts = self._texts({rank: f"rank{rank}" for rank in ranks})
        return {rank: Sighting(*json.loads(text)) for rank, text in texts.items()}

    def decide(self, text: str) -> EndingCause:
        """Say why the run has ended; return what was said first."""
        own = EndingCause(node_number(), text)
        return EndingCause.of(self._store.compare_set(VERDICT, "", own.value())) or own

    def verdict(self) -> EndingCause | None:
        """Return why the run has ended; None as long as nobody has said so."""
        return EndingCause.of(self._store.compare_set(VERDICT, "", ""))

    def agree_on_drain(self, agreement: DrainAgreement, sightings: Collection[Sighting], request: LeaveRequest) -> None:
        """Write the next state of the agreement on an early drain, if the run is to leave and all guards know the last.

        Args:
            agreement: The last, as far as the guard that calls this knows it.
            sightings: Where all ranks are.
            request: Says how soon the run is drained.
        """
        is_late = request.is_late(is_asked=any(sighting.is_asked for sighting in sightings))
        if is_late and not agreement.decided and all(sighting.proposed == agreement.proposed for sighting in sightings):
            following = agreement.following(max(sighting.read for sighting in sightings), request)
            self._store.set(_DRAIN, json.dumps(following))

    def drain_agreement(self) -> DrainAgreement:
        """Return the last state of the agreement on an early drain."""
        return DrainAgreement(*json.loads(self._texts({0: _DRAIN}).get(0, "[]")))

    def ask_for_stacks(self) -> None:
        """Let all guards write the stacks of their ranks."""
        self._store.set(_ASKED, "")

    def are_stacks_asked_for(self) -> bool:
        """Return whether they are to."""
        return self._store.check([_ASKED])

    def write_stacks(self, rank: int, text: str) -> None:
        """Say what the threads of a rank are doing."""
        self._store.set(f"stacks{rank}", text)

    def read_stacks(self, ranks: Iterable[int]) -> dict[int, str]:
        """Return what the threads of ranks are doing, of those whose guards have said so."""
        return self._texts({rank: f"stacks{rank}" for rank in ranks})

    def _texts(self, keys: dict[int, str]) -> dict[int, str]:
        """Return what is under those keys that are there; the store would wait for the others."""
        for key in keys.values():
            if key not in self._known and self._store.check([key]):
                self._known.add(key)
        there = {number: key for number, key in keys.items() if key in self._known}
        values = self._store.multi_get([*there.values()]) if there else []
        return {number: value.decode() for number, value in zip(there, values, strict=True)}
