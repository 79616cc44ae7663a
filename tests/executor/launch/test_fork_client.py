"""The fork server and its client, with a server that loads in no time: the one of ranks imports torch."""

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipesched.executor.launch import fork_client
from pipesched.executor.launch.fork_client import end_server, fork, prepare
from pipesched.profiles.processes import can_fork
from tests.executor.launch import light_server
from tests.processes import eventually, run

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not can_fork(), reason="processes are started one by one here"),
]
ROOT = Path(__file__).parents[3]
SERVER, FOREVER_S = Path(light_server.__file__), 1000.0


def environment(**more):
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | more


fork = partial(fork, module=light_server.__name__)


@pytest.fixture(autouse=True)
def start_with(monkeypatch):
    """Return a function that starts light servers from now on, which load as long as it says."""

    def start(loads_s):
        end_server()
        words = [sys.executable, str(SERVER), str(loads_s)]
        monkeypatch.setattr(fork_client, "command", lambda module, *arguments: [*words, *arguments[:2]])

    monkeypatch.setattr(fork_client, "environment", environment)
    monkeypatch.setattr(fork_client, "_servers", [])
    start(0.0)
    yield start
    end_server()


def waiting(tmp_path, number):
    return fork(["wait"], environment(), tmp_path / f"log{number}")


def server():
    """Return the process of this one that others are forked from."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (server_pid,) = (pid for pid in children if str(SERVER).encode() in Path(f"/proc/{pid}/cmdline").read_bytes())
    return int(server_pid)


def test_a_fork_gets_its_arguments_folder_and_environment_and_writes_to_its_log(tmp_path):
    assert fork(["a", "b"], environment(WORD="c"), tmp_path / "log").wait() == 2
    assert (tmp_path / "log").read_text() == "a b c\n"


def test_a_server_is_in_no_folder_that_a_user_may_delete(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    assert fork([], environment(), tmp_path / "log").wait() == 0
    (tmp_path / "gone").rmdir()
    monkeypatch.chdir(tmp_path)
    assert fork([], environment(), tmp_path / "log").wait() == 0
    assert Path(f"/proc/{server()}/cwd").readlink() == Path("/")


def test_one_server_is_kept_and_is_started_anew_when_it_is_gone_and_outlives_the_thread_that_did(tmp_path):
    for name in "ab":
        assert fork([], environment(), tmp_path / name).wait() == 0
    before = server()
    process = waiting(tmp_path, 0)
    assert eventually((tmp_path / "log0").exists)
    assert process.poll() is None
    os.kill(before, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    thread = threading.Thread(target=lambda: fork([], environment(), tmp_path / "c").wait())
    thread.start()
    thread.join()
    assert not Path(f"/proc/{before}").exists(), "it is another one"
    after = waiting(tmp_path, 1)
    assert eventually((tmp_path / "log1").exists)
    assert after.poll() is None
    after.kill()
    assert after.wait() == -signal.SIGKILL


def test_a_fork_can_be_killed_and_the_others_go_on(tmp_path):
    first, second = waiting(tmp_path, 1), waiting(tmp_path, 2)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    first.kill()  # it is over, so nothing happens
    assert second.poll() is None
    second.kill()
    assert second.wait() == -signal.SIGKILL


def test_who_waits_for_the_imports_of_the_server_is_killed_at_once(tmp_path, start_with):
    start_with(FOREVER_S)
    first, second = waiting(tmp_path, 1), waiting(tmp_path, 2)
    first.kill()
    second.kill()
    assert first.wait() == second.wait() == -signal.SIGKILL
    assert second.servers_end is None
    assert not (tmp_path / "log1").exists(), "it has not begun"


def test_a_server_takes_all_that_is_asked_of_it_while_it_imports(tmp_path, start_with):
    """Two megabytes: more than a socket holds."""
    start_with(FOREVER_S)
    asked = [fork([], environment(MUCH="x" * 100_000), tmp_path / f"log{number}") for number in range(20)]
    assert not (tmp_path / "log0").exists(), "it has not begun"
    assert all(process.poll() is None for process in asked)
    for process in asked:
        process.kill()
    assert {process.wait() for process in asked} == {-signal.SIGKILL}


def test_a_server_that_somebody_has_stopped_ends_its_processes_all_the_same(tmp_path):
    process = waiting(tmp_path, 0)
    assert eventually((tmp_path / "log0").exists)
    os.kill(server(), signal.SIGSTOP)
    assert eventually(lambda: process.servers_end == "is stopped by a signal")
    process.kill()
    assert eventually(lambda: process.poll() == -signal.SIGKILL)
    assert process.servers_end is None


def signals(pid, field):
    """Return the signals that a process holds back (SigBlk) or ignores (SigIgn)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = int(next(line for line in lines if line.startswith(field)).split()[1], 16)
    return {number for number in signal.valid_signals() if mask >> number - 1 & 1}


def test_an_ended_server_leaves_no_process_and_the_next_one_holds_no_signal_back_whatever_the_launcher_does(tmp_path):
    process = waiting(tmp_path, 0)
    assert eventually((tmp_path / "log0").exists)
    before = server()
    end_server()
    end_server()  # there is none any more
    assert process.wait() == -signal.SIGKILL
    assert not Path(f"/proc/{before}").exists()
    stops = {signal.SIGINT, signal.SIGTERM}
    held = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        process = waiting(tmp_path, 1)
        assert eventually((tmp_path / "log1").exists)
        assert server() != before
        assert eventually(lambda: not signals(server(), "SigBlk:") & stops)
        children = Path(f"/proc/{server()}/task/{server()}/children").read_text().split()
        assert not signals(children[0], "SigBlk:") & stops
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_a_thread_is_gone_before_anything_is_forked(tmp_path):
    program = """if True:
        import threading, time
        from pathlib import Path
        from pipesched.executor.launch.fork_server import _await_end
        threads = [threading.Thread(target=time.sleep, args=(lasts_s,), daemon=True) for lasts_s in (0.2, 1000)]
        for thread in threads:
            thread.start()
        _await_end(threads[0])
        print(*(Path(f"/proc/self/task/{thread.native_id}").exists() for thread in threads))"""
    done = run([sys.executable, "-c", program], env=environment(PYTHONPATH=str(ROOT)))
    assert done.stdout == "False True\n"


def test_nothing_is_loaded_for_ranks_on_gpus(monkeypatch):
    told = []
    monkeypatch.setattr(fork_client, "_server", lambda: SimpleNamespace(tell=told.append))
    prepare("cuda")
    assert told == []
    prepare("cpu")
    assert told == [{"load": True}]
