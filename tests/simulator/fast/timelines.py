"""Timelines of the array engine beside those of SimPy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipesched.schedules import Timeline
from pipesched.simulator.fast import array_engine


class AskedSimPyError(Exception):
    """The array engine has handed lists to SimPy."""


def without_simpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the array engine answer by itself, or raise `AskedSimPyError`."""

    def refuse(*_: object, **__: object) -> None:
        raise AskedSimPyError

    monkeypatch.setattr(array_engine.CompiledLists, "_simpys", refuse)


def assert_same_timeline(timeline: Timeline, expected: Timeline) -> None:
    """Hold every span and hand-over of the one to that of the other [s]."""
    for records, wanted in ((timeline.spans, expected.spans), (timeline.hand_overs, expected.hand_overs)):
        assert [(record.rank, record.op) for record in records] == [(record.rank, record.op) for record in wanted]
        for name in ("posted_s", "start_s", "end_s") if wanted is expected.spans else ("start_s", "end_s"):
            times_s, wanted_s = ([getattr(record, name) for record in rows] for rows in (records, wanted))
            assert times_s == pytest.approx(wanted_s, rel=1e-9, abs=1e-9)
    assert replace(timeline, spans=(), hand_overs=(), memory=()) == replace(
        expected, spans=(), hand_overs=(), memory=()
    )
