"""The watch of ranks on streams of one process: a GPU that hangs ends the process, and its rank and op are named."""

import re
import sys
import tempfile
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipesched.executor.core import HostStreams
from pipesched.executor.launch import FAILED
from pipesched.executor.runs import local_ranks
from pipesched.executor.runs.stream_watch import StreamWatch
from pipesched.executor.training import LaunchTimes
from pipesched.schedules.builders import build
from tests.executor.hanging_gpu import HangingGpu, LeftError
from tests.executor.job_sequence_ranks import end_of_module
from tests.executor.pipelines import Local

LATER_S = 2.0
FOREVER_S = 3600.0


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return HangingGpu(monkeypatch)


def watched_run(gpu, timeout_s, seconds, probe=None, **settings):
    """Run 1F1B on two streams that stand for `seconds` at ops; return the watch."""
    run = Local(build("1f1b", 2, 4), "mlp:layers=4,width=4")
    streams = {rank: gpu.streams() for rank in range(2)}
    built = {rank.rank: rank.stages for rank in run.ranks}
    ranks = local_ranks(run.schedule, built.__getitem__, streams=streams)
    watch = StreamWatch(streams, timeout_s, leave=gpu.leave, **settings)
    with watch.watching():
        followed = [replace(rank, probes=[probe or gpu.probe(seconds)]) for rank in ranks]
        watch.run(followed, dict.fromkeys(range(2), run.batch))
    return watch


def test_the_rank_and_the_op_at_which_a_gpu_hangs_are_named_and_the_process_ends(gpu, tmp_path, capsys):
    with pytest.raises(LeftError):
        watched_run(gpu, 0.5, {"1F2": FOREVER_S})
    assert time.monotonic() - gpu.stands_s <= 0.5 + LATER_S
    assert gpu.code == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pipesched: rank 1 failed at 1F2 (micro-batch 2): it has stood still for 0.")
    assert re.search(r"; rank 0 at 0B2 has waited 0\.\d s for rank 1; ", line)
    (report,) = tmp_path.glob("pipesched-standstill-*.txt")
    assert line.endswith(f"the stacks of all ranks are in {report}")
    assert "in synchronize" in report.read_text()


def test_a_gpu_that_moves_may_take_longer_in_all(gpu):
    ops = [f"{stage}{phase}{number}" for stage in range(2) for phase in "FB" for number in range(4)]
    begun_s = time.monotonic()
    watched_run(gpu, 0.6, dict.fromkeys(ops, 0.15))
    assert time.monotonic() - begun_s > 0.6
    assert gpu.code is None


def test_an_idle_gpu_lets_the_host_take_its_time(gpu):
    def probe(op, stage):
        if str(op) == "1F2":
            gpu.synchronize(None)
            time.sleep(1.0)
        return lambda value: None

    watched_run(gpu, 0.1, {}, probe)
    assert gpu.code is None


def test_an_evaluation_may_take_as_long_as_it_likes(gpu):
    watched_run(gpu, 0.1, {"1F2": 1.0}, is_paused=lambda: True)
    assert gpu.code is None


def test_the_process_ends_if_neither_a_file_nor_the_terminal_takes_the_report(gpu, monkeypatch):
    def refuse(_):
        raise OSError

    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=refuse))
    with pytest.raises(LeftError):
        watched_run(gpu, 0.1, {"1F2": FOREVER_S})
    assert gpu.code == FAILED


def test_a_gpu_that_has_begun_its_last_op_when_all_are_launched_is_bound_by_launching(gpu):
    at_once = watched_run(gpu, 60.0, {}).launching
    assert (at_once.num_passes, at_once.num_bound, at_once.is_bound) == (1, 1, True)
    assert 0 < at_once.launch_s <= at_once.run_s
    later = watched_run(gpu, 60.0, {"1F1": 0.3}).launching
    assert (later.num_passes, later.num_bound, later.is_bound) == (1, 0, False)
    assert later.launch_s < 0.3 <= later.run_s


def test_time_inside_lists_that_is_no_launching_does_not_count(gpu):
    spent_s = iter([5.0, 7.0])
    run = Local(build("1f1b", 1, 2), "mlp:layers=4,width=4")
    streams = {0: gpu.streams()}
    ranks = local_ranks(run.schedule, lambda rank: run.ranks[rank].stages, streams=streams)
    watch = StreamWatch(streams, 60.0, spent_s.__next__)
    watch.run(ranks, {0: run.batch})
    assert -2.0 < watch.launching.launch_s <= watch.launching.run_s < -1.0


def test_ranks_on_cpus_are_not_watched():
    run, before = Local(build("1f1b", 2, 2)), threading.active_count()
    watch = StreamWatch({rank: HostStreams() for rank in range(2)}, 0.1)
    with watch.watching():
        assert threading.active_count() == before
        watch.run(run.ranks, dict.fromkeys(range(2), run.batch))
    assert watch.launching is None


def test_more_than_half_of_the_passes_make_a_run_launch_bound():
    assert not LaunchTimes(1.0, 2.0, 2, 1).is_bound
    assert LaunchTimes(1.0, 2.0, 3, 2).is_bound


@pytest.mark.distributed
def test_a_training_on_a_gpu_that_hangs_ends_with_its_line(tmp_path):
    """The host waits for the GPU; nothing but the exit of the process would end that."""
    (code,), (said,) = end_of_module("tests.executor.hanging_gpu", 1, tmp_path)
    assert code == FAILED
    assert said.startswith("pipesched: rank 1 failed at 1F6@1 (micro-batch 6): it has stood still for ")
