"""The watches of ranks under torchrun, without torchrun: they meet on a store, and no process ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from torch.distributed import TCPStore

from pipesched.executor.launch import DrainPage, LeaveRequest, rank_watch, stacks_written_to
from pipesched.executor.launch.progress_page import ProgressPage
from pipesched.executor.launch.rank_watch import RankWatch, WatchedRank, WatchedRun
from pipesched.executor.launch.run_board import EndingCause, RunBoard
from pipesched.executor.launch.siblings import ProcessFiles
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import forward

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks can watch each other on Linux")

SLEEP = ["/bin/sleep", "600"]
LISTS = lower(build("gpipe", 4, 4))


class Left(BaseException):
    """A process would have ended."""


class Process:
    """A process of the run with a rank and its watch, all in the process of the test, or beside another process."""

    def __init__(self, number, folder, nodes=(0, 1, 2, 3), timeout_s=600.0, request=None, command=None):
        page = ProgressPage.create(folder / f"page{number}", 1)
        files = [os.open(folder / f"{name}{number}", os.O_RDWR | os.O_CREAT) for name in ("page", "stacks")]
        self.child = None if command is None else subprocess.Popen(command, pass_fds=files)
        pid = os.getpid() if self.child is None else self.child.pid
        self.row = page.host_row(0)
        with patch("os.getpid", lambda: pid):
            self.row.begin()
        self.status = WatchedRank(page, DrainPage.create(folder / f"drain{number}", 1))
        self.status.run = WatchedRun(range(4), LISTS.ops.__getitem__, timeout_s, is_on_cpus=True, request=request)
        node = [other for other in range(4) if nodes[other] == nodes[number]]
        self.codes = []
        board = RunBoard(number)
        self.watch = RankWatch(self.status, board, number, node, ProcessFiles(pid, *files), self._leave)

    def _leave(self, code):
        self.codes.append(code)
        raise Left

    def look(self):
        """Look at the board; return whether the process has not ended."""
        try:
            self.watch.look()
        except Left:
            return False
        return True


@pytest.fixture
def store(monkeypatch, tmp_path):
    """Yield a list with the only reference to torchrun's store; stacks of the test go to the file of process 0."""
    servers = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(servers[0].port))
    with (tmp_path / "stacks0").open("w") as file, stacks_written_to(file):
        yield servers


@pytest.fixture
def clock(monkeypatch):
    """Let the clock stand still, but for sleeps; return a function that moves it."""
    now_s = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(now_s[0] * 1e9))

    def wait(seconds):
        now_s[0] += seconds

    monkeypatch.setattr(time, "sleep", wait)
    return wait


def test_the_first_cause_is_that_of_all_and_is_printed_once_per_node(store, tmp_path, clock, capsys):
    processes = [Process(number, tmp_path, nodes=(0, 1, 1, 2)) for number in range(4)]
    assert all(process.look() for process in processes * 2)
    boards = [RunBoard(4), RunBoard(5)]
    told = [board.decide(text) for board, text in zip(boards, ("rank 4: é", "rank 5"), strict=True)]
    assert told == [EndingCause(4, "rank 4: é")] * 2
    printed = []
    for process in processes:
        assert not process.look()
        printed.append(capsys.readouterr().err)
    assert printed == ["executor: rank 4: é\n"] * 2 + ["", "executor: rank 4: é\n"]
    assert [process.codes for process in processes] == [[3]] * 4


def test_a_silent_process_is_named_once_another_has_lost_a_connection(store, tmp_path, clock, capsys):
    processes = [Process(number, tmp_path) for number in range(4)]
    processes[2].row.reach(5, forward(2, 1))
    assert all(process.look() for process in [*processes, *processes[:2]])
    processes[1].status.lost = "rank 1 failed at 1B0 (micro-batch 0): waited for rank 2: Connection closed by peer"
    clock(0.9)
    assert all(processes[number].look() for number in (0, 1, 3))
    clock(0.2)
    assert processes[3].look()
    assert not processes[0].look()
    assert not processes[1].look()
    named = "executor: rank 2 failed at 2F1 (micro-batch 1): nothing has been heard of its process for 1.1 s, and "
    assert capsys.readouterr().err == 2 * f"{named}connections to it are closed\n", "nodes of one rank each"


def test_without_a_silent_process_the_lost_connection_is_the_cause(store, tmp_path, clock, capsys):
    processes = [Process(number, tmp_path) for number in range(4)]
    processes[1].status.lost = "rank 1 failed at 1B0 (micro-batch 0): waited for rank 2: Connection closed by peer"
    assert all(process.look() for _ in range(20) for process in processes if not clock(0.02))
    clock(0.9)
    assert not processes[1].look()
    assert capsys.readouterr().err == f"executor: {processes[1].status.lost}\n"


def test_where_rank_0_is_silent_the_next_rank_is_the_judge(store, tmp_path, clock, capsys, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    processes = [Process(number, tmp_path, timeout_s=3.0) for number in range(4)]
    for number, process in enumerate(processes):
        process.row.reach(2, forward(number, 1))
    processes[1].row.wait(0)
    assert all(process.look() for process in processes * 2)
    for _ in range(5):
        clock(0.5)
        assert all(process.look() for process in processes[1:])
    clock(0.6)
    assert all(process.look() for process in processes[2:])
    assert not processes[1].look()
    error = capsys.readouterr().err
    told = "executor: rank 0 failed at 0F1 (micro-batch 1): nothing has been heard of its process for 3.1 s: "
    wait = "rank 1 at 1F1 has waited 3.1 s for rank 0; if"
    assert error.startswith(f"{told}the process is stopped, hangs or is cut off; {wait}")
    assert "0     0F1  3.1 s  -          -      silent" in Path(error.split()[-1]).read_text()


@pytest.mark.parametrize("is_met", [True, False])
def test_a_process_that_is_killed_is_named_by_its_sibling_at_once(is_met, store, tmp_path, capsys):
    watching, killed = Process(0, tmp_path, (0, 0, 1, 1)), Process(1, tmp_path, (0, 0, 1, 1), command=SLEEP)
    assert killed.look()
    killed.row.reach(2, forward(1, 3))
    assert not is_met or watching.look()
    killed.child.kill()
    bell, ring = socket.socketpair()
    with bell, ring, killed.child, pytest.raises(Left):
        watching.watch.watch(bell)
    how = "at 1F3 (micro-batch 3): the process was killed by signal 9"
    late = "before its first op: its process ended before the end of its op list"
    assert capsys.readouterr().err == f"executor: rank 1 failed {how if is_met else late}\n"
    assert watching.codes == [3]


def test_a_process_that_ends_behind_its_list_ends_no_run(store, tmp_path):
    watching, over = Process(0, tmp_path, (0, 0, 1, 1)), Process(1, tmp_path, (0, 0, 1, 1), command=SLEEP)
    bell, ring = socket.socketpair()
    with bell, over.child:
        assert watching.look()
        over.row.end()
        over.child.kill()
        ring.close()
        watching.watch.watch(bell)
    assert watching.codes == []
    assert watching.look()


def test_a_process_that_is_stopped_is_reported_by_its_sibling_and_ended(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(rank_watch, "SILENT_S", 0.05)
    watching = Process(0, tmp_path, (0, 0, 1, 1), timeout_s=0.3)
    stopped = Process(1, tmp_path, (0, 0, 1, 1), command=SLEEP)
    with stopped.child as child:
        stopped.row.reach(2, forward(1, 1))
        watching.row.reach(3, forward(0, 2))
        watching.row.wait(1)
        child.send_signal(signal.SIGSTOP)
        while watching.look():
            time.sleep(0.02)
        assert child.wait() == -signal.SIGVTALRM, "it goes on to write its stacks, and ends"
    told = capsys.readouterr().err
    assert told.startswith("executor: rank 1 failed at 1F1 (micro-batch 1): its process is stopped by a signal")
    report = Path(told.split()[-1]).read_text()
    assert "test_rank_watch.py" in report.partition("\nrank 0:\n")[2].partition("\nrank 1:\n")[0]


def test_a_store_that_goes_ends_the_run_unless_its_lists_are_over(store, tmp_path, capsys):
    processes = [Process(number, tmp_path) for number in range(2)]
    processes[0].status.is_done = True
    assert all(process.look() for process in processes)
    store.clear()
    assert [process.look() for process in processes] == [True, False]
    told = capsys.readouterr().err
    assert told.startswith("executor: rank 1 failed before its first op: torchrun's store at 127.0.0.1:")
    assert told.endswith("is gone, and with it an agent\n")


def test_a_signal_of_the_agent_is_the_cause_if_no_other_is_reported(store, tmp_path, clock, capsys):
    processes = [Process(number, tmp_path) for number in range(4)]
    processes[3].watch._note_signal(bytes([signal.SIGUSR1, signal.SIGTERM]))
    assert processes[3].look()
    clock(0.6)
    assert not processes[3].look()
    assert processes[3].codes == [128 + signal.SIGTERM]
    said = "executor: rank 3 failed before its first op: torchrun's agent has ended it by SIGTERM\n"
    assert capsys.readouterr().err == said
    processes[2].status.is_done = True
    with pytest.raises(Left):
        processes[2].watch._note_signal(bytes([signal.SIGTERM]))


def test_before_the_job_is_read_processes_are_named(store, tmp_path, clock, capsys):
    process = Process(1, tmp_path)
    process.status.run = None
    process.watch._note_signal(bytes([signal.SIGINT]))
    assert process.look()
    clock(0.6)
    assert not process.look()
    said = "process 1 failed before reading its job: torchrun's agent has ended it by SIGINT"
    assert capsys.readouterr().err == f"executor: {said}\n"


def test_the_judge_ends_lists_early_when_all_ranks_know_the_proposal(store, tmp_path, monkeypatch):
    monkeypatch.setattr("pipesched.executor.launch.early_drain.GRACE_S", 0.0)
    request = LeaveRequest(microbatches_per_step=4, every=100, begun=0)
    processes = [Process(number, tmp_path, request=request) for number in range(4)]
    gates = [
        process.status.drain_page.gate(0, lambda number=number: number == 2) for number, process in enumerate(processes)
    ]
    assert [gate.reach(1) for gate in gates] == [None] * 4
    for _ in range(4):
        assert all(process.look() for process in processes)
    assert [gate.end for gate in gates] == [4] * 4
