"""PyTorch as the oracle: PyTorch reads our files; PyTorch's files are read and run here."""

import csv
import io

import pytest

from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.check import find_faults
from pipesched.schedules.formats import from_json, to_json
from pipesched.schedules.formats.torch_csv import read_csv, write_csv, write_csv_comms
from pipesched.schedules.lowering import lower, lower_for_torch
from pipesched.schedules.ops import Send, computes, stages_of
from tests.executor import pipelines
from tests.schedules.formats.csv_support import halves
from tests.schedules.torch_schedules import constructed, loop, pipelining, vee

PRIVATE_NAMES = ("_Action", "_PipelineScheduleRuntime", "_validate_schedule")
GENERATORS = [
    ("ScheduleLoopedBFS", loop(4, 2)),
    ("ScheduleInterleaved1F1B", loop(4, 3)),
    ("ScheduleInterleavedZeroBubble", loop(4, 2)),
    ("ScheduleZBVZeroBubble", vee(4)),
    ("ScheduleDualPipeV", vee(4)),
]
SAYABLE, UNSAYABLE = halves(4, 16)


def test_pytorch_still_has_the_private_names_that_these_tests_use():
    missing = [name for name in PRIVATE_NAMES if not hasattr(pipelining, name)]
    assert not missing, f"torch.distributed.pipelining.schedules lost {missing}: read it again and adapt the CSV"
    for method in ("_load_csv", "_dump_csv"):
        assert hasattr(pipelining._PipelineScheduleRuntime, method)


def load(path, file_format, schedule):
    runtime = constructed(
        "_PipelineScheduleRuntime", schedule.num_ranks, schedule.num_microbatches, list(stages_of(schedule.ops[0]))
    )
    runtime._load_csv(str(path), format=file_format)
    return runtime


@pytest.mark.parametrize(("kind", "stages"), GENERATORS)
def test_we_read_pytorchs_own_orders_and_write_them_back(tmp_path, kind, stages):
    torch_schedule = constructed(kind, 4, 8, stages)
    for file_format, order in (
        ("compute_only", torch_schedule.pipeline_order),
        ("compute_comms", torch_schedule.pipeline_order_with_comms),
    ):
        path = tmp_path / f"{file_format}.csv"
        torch_schedule._dump_csv(str(path), format=file_format)
        schedule = read_csv(path, steps=False)
        assert (schedule.num_stages, schedule.num_microbatches, schedule.num_ranks) == (4 * len(stages), 8, 4)
        expected = [[str(action) for action in order[rank] if action is not None] for rank in range(4)]
        assert [[str(op) for op in row] for row in schedule.ops] == expected
        for op in (op for row in schedule.ops for op in row if isinstance(op, Send)):
            assert op.peer == torch_schedule.stage_index_to_group_rank[op.message.receiver]
        written = (write_csv if file_format == "compute_only" else write_csv_comms)(schedule).encode()
        if file_format == "compute_comms":  # the other has idle cells, which say nothing
            assert written == path.read_bytes()
        path.write_bytes(written)
        assert load(path, file_format, schedule).pipeline_order_with_comms == torch_schedule.pipeline_order_with_comms


@pytest.mark.parametrize(("kind", "stages"), GENERATORS)
def test_what_pytorch_dumps_runs_here_with_the_gradients_of_the_whole_model(tmp_path, kind, stages):
    constructed(kind, 4, 8, stages)._dump_csv(str(tmp_path / "theirs.csv"), format="compute_comms")
    schedule, model = read_csv(tmp_path / "theirs.csv", steps=False), "mlp:layers=12,width=8"
    assert not find_faults(schedule)
    module, inputs, targets, loss = pipelines.whole_model(model, 16)
    loss(module(inputs), targets).backward()
    run = pipelines.Local(schedule, model).run()
    for parameter, whole in zip(run.parameters, module.parameters(), strict=True):
        pipelines.assert_equal([parameter.grad], [whole.grad])  # by its own largest value: the first are small


@pytest.mark.parametrize("schedule", [*SAYABLE.values(), interleaved(2, 4, 3)], ids=lambda schedule: schedule.name)
def test_pytorch_reads_what_we_write(tmp_path, schedule):
    """`test_torch_insertion` has it read lists without communication."""
    path = tmp_path / "ours.csv"
    for lowering in (lower, lower_for_torch):
        text = write_csv_comms(lowering(schedule))
        path.write_bytes(text.encode())
        order = load(path, "compute_comms", schedule).pipeline_order_with_comms
        cells = [[str(action) for action in order[rank]] for rank in range(schedule.num_ranks)]
        assert cells == list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("name", UNSAYABLE)
def test_what_a_csv_cannot_say_is_refused_with_the_reason_and_json_says_it(name):
    schedule, message = build(name, 4, 16), UNSAYABLE[name]
    reasons = {
        "PyTorch's CSV has each stage on one rank": has_replicas(schedule),
        "(a weight version)": any(part.version or part.lookahead for part in parts(schedule)),
        "(an optimizer step that is not the last": CATALOGUE[name].traits.is_asynchronous,
        "(the word AVERAGE)": CATALOGUE[name].traits.averages,
    }
    given = [reason for reason in reasons if reason in message]
    assert given
    assert all(reasons[reason] for reason in given)
    assert "try our JSON (schedules.formats.to_json)" in message
    assert len(message.splitlines()) == 1
    assert from_json(to_json(schedule), "s.json") == schedule


def test_every_schedule_that_flushes_can_be_said_unless_a_stage_has_replicas():
    for name, schedule in SAYABLE.items():
        assert not CATALOGUE[name].traits.is_asynchronous
        assert not has_replicas(schedule)
    for name in UNSAYABLE:
        assert CATALOGUE[name].traits.is_asynchronous or has_replicas(build(name, 4, 16))


def parts(schedule):
    return [part for row in schedule.ops for op in row for part in computes(op)]


def has_replicas(schedule):
    homes = [stages_of(row) for row in schedule.ops]
    return sum(map(len, homes)) > schedule.num_stages
