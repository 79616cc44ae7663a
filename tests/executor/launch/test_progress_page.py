"""The page where ranks write where they are, read while they write."""

import os
import subprocess
import sys
import time

import pytest

from pipesched.executor import NOBODY
from pipesched.executor.launch.progress_page import ProgressPage
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Compute, Message, Overlap, Payload, Phase, Recv, Reduce, Send, forward

LONGEST = 999_999_999
OPS = build("1f1b", 2, 50).ops[1]
WRITER = """
import sys
from pathlib import Path
from pipesched.executor import waiting_for
from pipesched.executor.launch.progress_page import ProgressPage
from pipesched.schedules.builders import build

ops = build("1f1b", 2, 50).ops[1]
write = ProgressPage.open(Path(sys.argv[1])).writer(1)
while not Path(sys.argv[2]).exists():
    for index, op in enumerate(ops):
        write(index, op)
        with waiting_for("a message", 0):
            pass
"""


def test_a_rank_that_is_read_while_it_writes_has_never_waited_longer_than_it_has(tmp_path):
    """Of a number that is written in two steps, a reader could take a rank to wait since the machine was started."""
    begun_ns = time.monotonic_ns()
    with ProgressPage.create(tmp_path / "page", 2) as page:
        stop, ran = tmp_path / "stop", []
        writer = subprocess.Popen([sys.executable, "-P", "-c", WRITER, str(tmp_path / "page"), str(stop)])
        while writer.poll() is None and (len(ran) < 20_000 or ran[-1].num_ops <= 1000):
            state = page.read(1)
            elapsed_s = (time.monotonic_ns() - begun_ns) / 1e9
            if state.pid > 0:
                ran.append(state)
                assert state.num_ops <= 0 or state.at_op_s < elapsed_s
                assert state.whom < 0 or state.waits_s < elapsed_s
        stop.touch()
        assert writer.wait() == 0
        assert page.read(0).num_ops == -1, "nobody has written there"
    assert ran[-1].num_ops > 1000
    assert all(where.num_ops != 0 and where.place >= -1 for where in ran)
    assert {where.text for where in ran if where.num_ops > 0} <= {str(op) for op in OPS}, "none is half of one"


@pytest.mark.parametrize(
    "op",
    [
        forward(3, 7),
        Overlap(*(Compute(phase, *[LONGEST] * 4) for phase in (Phase.FORWARD, Phase.BACKWARD))),
        Send(Message(Payload.ACTIVATION, 2, 5), 3),
        Recv(Message(Payload.GRADIENT, 2, 5), 3),
        Reduce(4),
    ],
    ids=str,
)
def test_the_op_that_a_rank_is_at_is_known_without_its_list(op, tmp_path, monkeypatch):
    monkeypatch.setattr("pipesched.executor.errors._wait_listeners", [])  # the page's ends with it
    with ProgressPage.create(tmp_path / "page", 2) as page:
        write = page.writer(1)
        assert page.read(1).op is None
        for before in (OPS[0], op):
            write(0, before)
        assert (str(page.read(1).op), page.read(0).op) == (str(op), None)


def test_the_position_of_a_device_is_read_while_it_is_written_and_that_of_the_host_stays_beside_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("pipesched.executor.errors._wait_listeners", [])
    with ProgressPage.create(tmp_path / "page", 3) as page:
        writers = [page.writer(number) for number in range(3)]
        for number, write in enumerate(writers):
            for index in range(20 + number):
                write(index, OPS[index])
        row = page.device_row(1)
        row.begin()
        assert page.read(1).num_ops == -1, "the device is before its first op"
        for index in range(4):
            row.reach(index, OPS[index])
        row.wait(0)
        there = page.read(1)
        assert (there.op, there.place, there.num_ops, there.whom, there.pid) == (OPS[3], 3, 4, 0, os.getpid())
        assert (page.read_host(1).op, page.read_host(1).whom) == (OPS[20], NOBODY)
        assert [page.read(number).op for number in (0, 2)] == [OPS[19], OPS[21]]
        row.end()
        assert (page.read(1).op, page.read(1).num_ops) == (OPS[20], 21)
