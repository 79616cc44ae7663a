"""Traces read in windows: what is read does not depend on where a window ends, and damage is told."""

import gzip
import json
import random
import tracemalloc

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.traces import event_stream, read_traces
from pipesched.profiles.traces.event_stream import read_events
from tests.profiles.traces.kineto_files import two_ranks

EVENTS = [{"ph": "X", "ts": 12.5, "args": {"list": [1, [], {}], "text": 'a"b\\]}é'}}, {}, {"n": -1e-3, "none": None}]
FIELDS = {"before": 1234567, "list": [1, 2], "base": 1790857026000000000}


@pytest.mark.parametrize("window", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_events_and_the_fields_around_them_are_read_whatever_the_window(tmp_path, monkeypatch, window, indent):
    monkeypatch.setattr(event_stream, "_WINDOW", window)
    path, fields, seen = tmp_path / "trace.json", {}, []
    document = {"before": FIELDS["before"], "traceEvents": EVENTS, "list": FIELDS["list"], "base": FIELDS["base"]}
    path.write_text(json.dumps(document, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert list(read_events(path, fields, seen.append)) == EVENTS
    assert fields == FIELDS
    assert seen[-1] == 1.0
    assert seen == sorted(seen)


@pytest.mark.slow
def test_reading_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(event_stream, "_WINDOW", 1 << 16)
    path = tmp_path / "trace.json"
    event = json.dumps({"ph": "X", "name": "x" * 200, "args": {"number": 1}})
    path.write_text('{"traceEvents": [' + ",".join([event] * 10_000) + "]}")
    tracemalloc.start()
    assert sum(1 for _ in read_events(path, {})) == 10_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 3


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_trace_that_is_cut_off_anywhere_is_told(tmp_path, is_packed):
    first, second = two_ranks(tmp_path)
    data = gzip.compress(first.read_bytes(), mtime=0) if is_packed else first.read_bytes().rstrip()
    for end in range(0, len(data), 1 + len(data) // 150):
        first.write_bytes(data[:end])
        with pytest.raises(ProfileError, match=r"rank0\.json: "):
            read_traces([first, second])


def test_a_damaged_trace_is_read_or_refused_in_one_line(tmp_path):
    first, second = two_ranks(tmp_path)
    data, draw, messages = first.read_bytes(), random.Random(0), []
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 3])):
            damaged[draw.randrange(len(data))] = draw.choice(b"0123456789{}[]',:.-eE \x00\xff")
        first.write_bytes(damaged)
        try:
            read_traces([first, second])
        except ProfileError as error:
            messages.append(str(error))
    assert len(messages) > 30
    assert not any("\n" in message for message in messages)
