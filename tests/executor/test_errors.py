"""Errors of a run stay in one line, whatever a user's code says."""

import pytest

from pipesched.executor import ExecutionError, PeerLost, RankFailed, failed
from pipesched.schedules.ops import forward

HOSTILE = "\x1b[31mred\x1b[0m\r\nsecond \u202eline\x07\udc80"


@pytest.mark.parametrize("kind", [ExecutionError, RankFailed, PeerLost])
@pytest.mark.parametrize("reason", [ValueError, RuntimeError, KeyError, str, MemoryError])
def test_a_users_words_are_printed_without_controls(kind, reason):
    for error in (kind(HOSTILE), failed(1, forward(1, 2), reason(HOSTILE)), failed(0, None, kind(HOSTILE))):
        assert str(error).isprintable()
        assert "red" in str(error)


def test_an_exception_of_50_mb_is_shown_shortened():
    message = str(failed(1, forward(1, 2), KeyError("a layer's own fault" + "x" * 50_000_000)))
    assert message.startswith("rank 1 failed at 1F2 (micro-batch 2): \"a layer's own faultxxx")
    assert len(message) < 1500
