"""Faults injected into runs of real processes; `benchmarks/fault_rows` has every kind, at random ranks and ops."""

import time
from collections import Counter

import pytest

from pipesched.executor import ExecutionError, FaultSettings, RankFailed
from pipesched.executor.core import lists_of
from pipesched.executor.launch import Interference, named_in_step, read_fault, require_there
from pipesched.executor.runs import launch, launch_training
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.ops import forward
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.checkpoint_runs import a_job
from tests.executor.pipelines import Local, job


@pytest.mark.distributed
def test_a_killed_rank_is_told_with_its_op_and_the_time_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    times, begun_ns = tmp_path / "times", time.monotonic_ns()
    monkeypatch.setenv("PIPESCHED_FAULT_TIMES", str(times))
    told = r"rank 1 failed at 1B1 \(micro-batch 1\): the process was killed by signal 9"
    with pytest.raises(RankFailed, match=f"^{told}$"):
        launch(job(build("1f1b", 2, 3), inject=("kill:rank=1,op=1B1",), iterations=2))
    assert begun_ns < int(times.read_text()) < time.monotonic_ns()


def interferences(inject, num_ranks=2):
    return [Interference(FaultSettings(inject=(inject,), is_finite_checked=True), 3, rank) for rank in range(num_ranks)]


@pytest.mark.parametrize(
    ("inject", "runs_before", "told"),
    [
        (
            "nan:rank=1,op=1F1",
            0,
            "rank 1 failed at 1F1 (micro-batch 1): got the first NaN of this run in the loss of stage 1,",
        ),
        (
            "nan:rank=0,op=0B0",
            0,
            "rank 0 failed at 0B0 (micro-batch 0): got the first NaN of this run in the gradient of 0.",
        ),
        ("raise:rank=1,op=1F0,run=1", 1, "rank 1 failed at 1F0 (micro-batch 0): a fault was injected here"),
    ],
)
def test_an_op_that_raises_or_is_the_first_to_give_nan_is_named_with_its_micro_batch(inject, runs_before, told):
    run = Local(build("1f1b", 2, 3))
    run.ranks = [fault.on(rank) for fault, rank in zip(interferences(inject), run.ranks, strict=True)]
    run.run(times=runs_before)
    with pytest.raises(RankFailed) as raised:
        run.run()
    assert str(raised.value).startswith(told)


def test_a_slow_rank_computes_so_many_times_as_long():
    (slow,) = interferences("slow:rank=0,factor=3", 1)
    begun_s = time.perf_counter()
    end = slow.probe(forward(0, 0), None)
    time.sleep(0.02)
    end(None)
    assert time.perf_counter() - begun_s >= 0.06  # a busy machine makes it longer, nothing shorter


@pytest.mark.parametrize(
    "text",
    [
        *("", "kill", "kill:", "kill:rank=1", "kill:rank=x,op=1F0", "kill:rank=-1,op=1F0", "kill:rank=1,op=1F0,op=1F1"),
        *("kill:rank=1,op=1F0,x=1", "kill:rank=1,op=1F0,run=1,step=1", "foo:rank=1,op=1F0", "drop-link:0,after=1"),
        *(
            "drop-link:0-1",
            "drop-link:0-1,after=-1",
            "disk-full:x=1",
            "slow:rank=1,factor=nan",
            "slow:rank=1,factor=0.5",
        ),
    ],
)
def test_what_is_no_fault_is_refused(text):
    with pytest.raises(ExecutionError, match="inject: got "):
        read_fault(text)


@pytest.mark.parametrize(
    "text",
    [
        "kill:rank=2,op=1F0",
        "kill:rank=0,op=1F0",
        "kill:rank=0,op=0RECV_F0",
        "kill:rank=0,op=0F1,run=2",
        "drop-link:0-0,after=1",
        "drop-link:0-2,after=1",
        "nan:rank=0,op=0SEND_F0",
        "nan:rank=0,op=0STEP",
    ],
)
def test_ranks_ops_and_runs_that_are_not_there_are_refused(text):
    with pytest.raises(ExecutionError, match="inject: got "):
        require_there([read_fault(text)], build("1f1b", 2, 3), 3, 2)


def test_an_op_of_a_training_is_named_as_in_its_first_step():
    run = ScheduleSpec(name="pipedream_2bw", num_ranks=2, num_microbatches=4).run(3)
    names = [named_in_step(op, run.microbatches_per_step) for op in lists_of(run.lists(3), {1})[1]]
    assert Counter(names)["1F1"] == Counter(names)["1RECV_F1"] == Counter(names)["1STEP"] == 3
    require_there([read_fault(f"kill:rank=1,op={name},step=2") for name in set(names)], run.beginning(1), 4, 3)


@pytest.mark.distributed
def test_a_fault_befalls_a_training_in_its_step():
    with pytest.raises(
        RankFailed,
        match=r"^rank 0 failed at 0F9(@2)? \(micro-batch 9\): got the first NaN of this run in the output of stage 0",
    ):
        launch_training(a_job("1f1b", steps=3, inject=("nan:rank=0,op=0F1,step=2",), is_finite_checked=True))


def test_emulated_stages_have_no_numbers():
    costs = StageCosts((StageCost(0.02, 0.02),) * 2, origin="by hand")
    with pytest.raises(ExecutionError, match="inject: got nan with costs to emulate"):
        job(build("gpipe", 2, 2), None, emulate=costs, inject=("nan:rank=0,op=0F0",))
