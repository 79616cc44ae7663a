"""What the processes beside a rank under torchrun say, without torchrun."""

import os
import signal
import socket

import pytest

from pipesched.executor.launch.rank_guard import Guarded, _Guard
from pipesched.executor.launch.start_watch import _watch_beside
from pipesched.executor.launch.verdict_store import EndingCause


def test_what_another_node_has_said_is_printed_once(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("GROUP_RANK", "0")
    nothing = dict.fromkeys(("rank", "pid", "agent", "page", "stacks", "connection", "num_ranks", "ops_of"))
    guard = _Guard(Guarded(**nothing, timeout_s=1.0, is_on_cpus=True), -1, -1)
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


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux has them")
@pytest.mark.parametrize(
    ("error", "said"), [(ConnectionResetError(), "torchrun's store at there:1 is gone"), (TimeoutError(), "")]
)
def test_a_store_that_goes_between_two_questions_ends_the_rank_and_a_slow_one_does_not(
    error, said, monkeypatch, capsys
):
    for name, value in (("MASTER_ADDR", "there"), ("MASTER_PORT", "1"), ("RANK", "2")):
        monkeypatch.setenv(name, value)
    rank = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ)
    process, agent = os.pidfd_open(rank), os.pidfd_open(os.getpid())
    try:
        _watch_beside(Store(2, error), rank, process, agent)
        assert said in capsys.readouterr().err
        if not said:
            os.kill(rank, signal.SIGKILL)
    finally:
        ended = os.waitpid(rank, 0)[1]
        os.close(process)
        os.close(agent)
    assert os.waitstatus_to_exitcode(ended) == -signal.SIGKILL
