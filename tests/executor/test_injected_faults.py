"""Faults injected into runs of real processes; `benchmarks/fault_rows` has every kind, at random ranks and ops."""

import re
import time
from collections import Counter

import pytest

from pipesched.executor import ExecutionError, RankFailed
from pipesched.executor.core import lists_of
from pipesched.executor.launch import named_in_step, read_fault, require_there
from pipesched.executor.runs import launch, launch_training
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Compute
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.pipelines import job
from tests.executor.test_training_processes import a_job

BRIEF_S = 4.0


def failure(inject, **fields):
    given = {"iterations": 2, "timeout_s": BRIEF_S} | fields
    with pytest.raises(RankFailed) as raised:
        launch(job(build("1f1b", 2, 3), inject=(inject,), **given))
    return str(raised.value)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("inject", "told"),
    [
        ("kill:rank=1,op=1B1", r"rank 1 failed at 1B1 \(micro-batch 1\): the process was killed by signal 9"),
        ("raise:rank=1,op=1F0,run=1", r"rank 1 failed at 1F0 \(micro-batch 0\): a fault was injected here"),
    ],
    ids=lambda value: value.partition(",")[0],
)
def test_what_befalls_a_rank_is_told_with_its_op_and_when_is_noted(inject, told, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    times, begun_ns = tmp_path / "times", time.monotonic_ns()
    monkeypatch.setenv("PIPESCHED_FAULT_TIMES", str(times))
    assert re.fullmatch(told, failure(inject))
    assert begun_ns < int(times.read_text()) < time.monotonic_ns()


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("inject", "told"),
    [
        ("nan:rank=1,op=1F1", "rank 1 failed at 1F1 (micro-batch 1): got NaN in the loss of stage 1, the first of"),
        ("nan:rank=0,op=0B0", "rank 0 failed at 0B0 (micro-batch 0): got NaN in the gradient of 0."),
    ],
)
def test_the_first_op_that_gives_nan_is_named_with_stage_and_micro_batch(inject, told):
    assert failure(inject, is_finite_checked=True).startswith(told)


@pytest.mark.distributed
def test_a_slow_rank_computes_so_many_times_as_long():
    costs = StageCosts((StageCost(0.02, 0.02),) * 2, origin="by hand")
    timeline = launch(job(build("gpipe", 2, 2), None, emulate=costs, inject=("slow:rank=1,factor=3",))).timeline
    seconds = [span.end_s - span.start_s for span in timeline.spans if isinstance(span.op, Compute) and span.rank == 1]
    assert min(seconds) >= 0.06  # a busy machine makes it longer, nothing shorter


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
        RankFailed, match=r"^rank 0 failed at 0F9(@2)? \(micro-batch 9\): got NaN in the output of stage 0"
    ):
        launch_training(a_job("1f1b", inject=("nan:rank=0,op=0F1,step=2",), is_finite_checked=True))


def test_emulated_stages_have_no_numbers():
    costs = StageCosts((StageCost(0.02, 0.02),) * 2, origin="by hand")
    with pytest.raises(ExecutionError, match="inject: got nan with costs to emulate"):
        job(build("gpipe", 2, 2), None, emulate=costs, inject=("nan:rank=0,op=0F0",))
