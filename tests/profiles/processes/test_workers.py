"""Workers go through items in processes of their own, and what goes wrong there is raised here."""

import os
import shutil
import signal
import sys
from multiprocessing import active_children
from pathlib import Path

import pytest

from pipesched.profiles.processes import WorkerLostError, worker_pool
from tests.processes import run

ROOT = Path(__file__).parents[3]


def test_each_portion_of_items_is_answered_in_its_order():
    with worker_pool(2, abs) as pool:
        futures = [pool.submit(range(-start, 1 - start)) for start in range(50)]
        assert [future.result() for future in futures] == [[start] for start in range(50)]
        assert pool.submit(()).result() == []
        assert len(active_children()) == 2
    assert active_children() == []


def test_what_is_raised_in_a_worker_is_raised_here_and_the_worker_continues():
    with worker_pool(1, int) as pool:
        with pytest.raises(ValueError, match="invalid literal for int"):
            pool.submit(["1", "x"]).result()
        assert pool.submit(["2"]).result() == [2]


def test_work_that_cannot_be_sent_is_raised_here():
    with worker_pool(1, lambda item: item) as pool, pytest.raises((AttributeError, TypeError), match="pickle"):
        pool.submit([1]).result()


@pytest.mark.parametrize(("end", "said"), [(os._exit, "exit code 9"), (signal.raise_signal, "signal 9")])
def test_a_worker_that_ends_is_named_in_one_line(end, said):
    with (
        worker_pool(1, end) as pool,
        pytest.raises(WorkerLostError, match=f"^workers: got {said} of a worker process, expected"),
    ):
        pool.submit([9]).result()
    assert active_children() == []


POOL = """
import sys
from pipesched.profiles.processes import worker_pool
with worker_pool(2, len) as pool:
    print(pool.submit(["ab"]).result(), "multiprocessing.synchronize" in sys.modules)
"""
NAMESPACE = ["unshare", "-m", "sh", "-c"]
"""Runs a command whose mounts nobody else sees, where the system lets this user do so."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mount", [None, "mount -t tmpfs -o ro none /dev/shm", "mount --bind /proc/self/fdinfo /dev/shm"]
)
def test_workers_need_no_shared_memory_and_make_no_semaphores(mount):
    if mount is not None and (shutil.which("unshare") is None or run([*NAMESPACE, mount]).returncode):
        pytest.skip("mounting needs privileges")
    prefix = [] if mount is None else [*NAMESPACE, f'{mount} && exec "$@"', "sh"]
    done = run([*prefix, sys.executable, "-c", POOL], cwd=ROOT)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[2] False\n")
