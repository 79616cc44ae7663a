"""What the processes beside a rank under torchrun say, without torchrun."""

import os
import signal
import socket
from contextlib import closing, contextmanager, suppress

import pytest

from pipesched.executor.launch import DrainPage, start_watch
from pipesched.executor.launch.rank_guard import Guarded, _Guard
from pipesched.executor.launch.start_watch import _tell_alone, _watch_beside
from pipesched.executor.launch.verdict_store import EndingCause


def test_what_another_node_has_said_is_printed_once(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("GROUP_RANK", "0")
    nothing = dict.fromkeys(("rank", "pid", "agent", "page", "stacks", "connection", "num_ranks", "ops_of", "request"))
    guard = _Guard(Guarded(**nothing, timeout_s=1.0, is_on_cpus=True, drain_page=DrainPage.of_one()), -1, -1)
    for _ in range(2):
        guard._show(EndingCause(1, "rank 3 failed"))
    assert capsys.readouterr().err == "executor: rank 3 failed\n"


class Store:
    """A store that answers so often before it goes."""

    def __init__(self, answers, error):
        self.socket, self._end = socket.socketpair()
        self._answers, self._error = answers, error

    def verdict(self):
        self._answers -= 1
        if self._answers < 0:
            raise self._error

    def close(self):
        self.socket.close()
        self._end.close()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux has them")
@pytest.mark.parametrize(
    ("error", "said"), [(ConnectionResetError(), "torchrun's store at there:1 is gone"), (TimeoutError(), "")]
)
def test_a_store_that_goes_between_two_questions_ends_the_rank_and_a_slow_one_does_not(
    error, said, monkeypatch, capsys
):
    for name, value in (("MASTER_ADDR", "there"), ("MASTER_PORT", "1"), ("RANK", "2")):
        monkeypatch.setenv(name, value)
    with watched_rank() as (rank, rank_fd, agent_fd, bell, _), closing(Store(2, error)) as store:
        _watch_beside(store, rank_fd, agent_fd, rank, bell)
        assert said in capsys.readouterr().err
        if said:
            assert os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) == -signal.SIGKILL
        else:
            assert os.waitpid(rank, os.WNOHANG) == (0, 0)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux has them")
@pytest.mark.parametrize("rung", [bytes([signal.SIGTERM]), b"\0", b""], ids=["told to end", "by itself", "killed"])
def test_a_rank_that_has_been_told_to_end_or_says_why_is_not_taken_for_the_first(rung, monkeypatch, capsys):
    for name, value in (("RANK", "2"), ("LOCAL_RANK", "0"), ("GROUP_RANK", "0")):
        monkeypatch.setenv(name, value)
    store = Decided(EndingCause(1, "rank 3 failed"))
    with watched_rank() as (rank, rank_fd, agent_fd, bell, ring), closing(store):
        ring.send(rung)
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)  # what an agent does: nobody can read any more how it has ended
        _watch_beside(store, rank_fd, agent_fd, rank, bell)
    own = "executor: process 2 failed before it had read its job: its process ended\n"
    assert capsys.readouterr().err == ("" if rung else own) + "executor: rank 3 failed\n"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux has them")
@pytest.mark.parametrize(("rung", "is_said"), [(b"", True), (b"\0", False)], ids=["killed", "by itself"])
def test_a_rank_that_is_killed_before_the_store_is_reached_is_named_all_the_same(rung, is_said, monkeypatch, capsys):
    """Its agent, which has the store, ends soon after it."""
    monkeypatch.setenv("RANK", "2")
    with watched_rank() as (rank, rank_fd, agent_fd, bell, ring):
        _tell_alone(rank, rank_fd, agent_fd, bell)
        assert capsys.readouterr().err == ""
        ring.send(rung)
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
        _tell_alone(rank, rank_fd, agent_fd, bell)
    own = "executor: process 2 failed before it had read its job: its process ended\n"
    assert capsys.readouterr().err == (own if is_said else "")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux has them")
def test_a_store_that_is_slow_to_hear_of_an_end_is_told_once_more(monkeypatch, capsys):
    """Else ranks of other nodes wait for the one that has ended."""
    for name, value in (("RANK", "2"), ("LOCAL_RANK", "0"), ("GROUP_RANK", "0")):
        monkeypatch.setenv(name, value)
    told = []
    monkeypatch.setattr(start_watch, "VerdictStore", lambda: closing(Told(told)))
    with watched_rank() as (rank, rank_fd, agent_fd, bell, _), closing(Slow(3, None)) as store:
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
        _watch_beside(store, rank_fd, agent_fd, rank, bell)
    own = "process 2 failed before it had read its job: its process ended"
    assert told == [own]
    assert capsys.readouterr().err == f"executor: {own}\n"


class Slow(Store):
    """A store that does not answer in time."""

    def decide(self, text):
        raise TimeoutError


class Told(Slow):
    """A store that hears what is said."""

    def __init__(self, told):
        super().__init__(1, None)
        self._told = told

    def decide(self, text):
        self._told.append(text)
        return EndingCause(0, text)


class Decided(Store):
    """A store where the verdict comes after a moment."""

    def __init__(self, cause):
        super().__init__(3, None)
        self._cause = cause

    def verdict(self):
        self._answers -= 1
        return self._cause if self._answers < 0 else None

    def decide(self, text):
        return self._cause


@contextmanager
def watched_rank():
    """Yield a process, a descriptor of it and of this one, and a bell with what rings it."""
    bell, ring = socket.socketpair()
    rank = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ)
    rank_fd, agent_fd = os.pidfd_open(rank), os.pidfd_open(os.getpid())
    try:
        yield rank, rank_fd, agent_fd, bell, ring
    finally:
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(rank, 0)
        os.close(rank_fd)
        os.close(agent_fd)
        bell.close()
        ring.close()
