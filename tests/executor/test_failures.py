"""A run that cannot go on ends soon, and says which rank, op and micro-batch.

`benchmarks/fault_rows` has the faults that befall any rank and op, and `tests/benchmarks/test_faults.py` a sample.
"""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pipesched.executor import ExecutionError, PeerLost, RankFailed, failed, waiting_for
from pipesched.executor.launch import Measure, Processes, RunSpec
from pipesched.executor.runs import launch
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import forward
from tests.executor.pipelines import job

pytestmark = pytest.mark.distributed


BRIEF_S = 4.0
"""How long a message may keep a rank waiting where that is what ends the run: more than any other on a busy machine."""


@pytest.fixture(autouse=True)
def _in_a_folder_of_users(monkeypatch):
    """Run where faulty_models.py is, as a user's own module."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(Path(__file__).parent)


def faulty(name, schedule=None, **fields):
    schedule = schedule or build("gpipe", 2, 4)
    bounds = tuple(pairwise([*range(schedule.num_stages), 3]))  # the last stage has the rest of three layers
    measure = Measure(schedule=to_json(schedule), iterations=1, warmup=0)
    return RunSpec(job=measure, model=f"faulty_models:{name}", bounds=bounds, **fields)


def failure(todo):
    with pytest.raises(RankFailed) as raised:
        launch(todo)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("model", "told"),
    [
        # its own calls are told
        (
            "raising:layer=1",
            r"rank 1 failed at 1F2 \(micro-batch 2\): .*a layer's own fault.* \(KeyError, faulty_models.py:\d+ in \w+",
        ),
        ("always_raising:layer=0", "stage 0: got KeyError .*a layer's own fault"),  # before the lists begin
        ("without_data", r"model .*: batch\(4, 0\): got KeyError \('no such data'\), expected a result"),
        ("leaving:layer=1", r"rank 1 failed at 1F2 \(micro-batch 2\): the process ended with exit code 7$"),
        ("nothing", ".*got no function 'nothing' in faulty_models"),
    ],
)
def test_what_goes_wrong_in_a_model_is_named_with_rank_op_and_micro_batch_or_stage(model, told):
    assert re.match(told, failure(faulty(model)))


@pytest.mark.parametrize(
    "reason",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
    ids=["Python", "CPU", "CUDA"],
)
def test_a_rank_without_room_is_told_what_to_try_once(reason):
    told = failed(1, forward(1, 2), reason)
    assert str(told).startswith("rank 1 failed at 1F2 (micro-batch 2): ")
    assert str(told).endswith("; try smaller micro-batches, more stages or recomputation")
    assert str(failed(1, None, told)).count("; try") == 1
    assert "try" not in str(failed(1, None, KeyError("weight")))


def test_more_processes_than_the_machine_can_be_expected_to_run_are_refused(tmp_path):
    with pytest.raises(ExecutionError, match=r"ranks: got 100000, each in its own process, expected at most \d+ on"):
        Processes(tmp_path, faulty("leaving:layer=1"), range(100_000), lambda rank: ())


def reported(message, tmp_path):
    """Return the file that the message names, of all that the run has left."""
    (report,) = tmp_path.iterdir()
    assert message.endswith(f"; the stacks of all ranks are in {report}")
    return report.read_text()


def test_a_rank_that_stands_still_is_named_first_with_its_op_and_then_who_waited(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    message = failure(faulty("sleeping:layer=0", build("gpipe", 3, 4), timeout_s=BRIEF_S))
    assert message.startswith("rank 0 failed at 0F2 (micro-batch 2): it has stood still")
    assert re.search(r"; rank 1 at .* has waited [\d.]+ s for rank 0", message)
    assert re.search("rank 2 at 2F[012] has waited", message), message  # what rank 1 has sent may not have left it
    report = reported(message, tmp_path)
    assert all(f"\nrank {number}:\n" in report for number in range(3))
    assert "faulty_models.py" in report.partition("\nrank 0:\n")[2].partition("\nrank ")[0]


def test_a_process_that_a_layer_has_started_does_not_outlive_the_run(tmp_path):
    message = failure(faulty(f"with_a_child:file={tmp_path}/pid"))
    assert "a layer's own fault" in message
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def crossed():
    """Rank 0 waits for B0 before it goes on, rank 1 waits for F1 before it goes back; every channel is in order."""
    careful, eager = lower(build("naive", 2, 2)), lower(build("gpipe", 2, 2))
    return replace(eager, lists=(careful.ops[0], eager.ops[1]))


def test_a_list_that_cannot_finish_ends_with_its_rank_and_op(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    message = failure(job(crossed(), timeout_s=BRIEF_S, is_checked=False))
    assert "the ranks wait for each other in a circle" in message
    assert "rank 0 at 0B0 has waited" in message
    assert "rank 1 at 1F1 has waited" in message
    assert message.startswith(("rank 0 failed at 0B0 (micro-batch 0)", "rank 1 failed at 1F1 (micro-batch 1)"))
    reported(message, tmp_path)


def test_an_unlowered_list_that_cannot_finish_is_refused_at_once():
    schedule = build("gpipe", 2, 2)
    rows = (schedule.ops[0], schedule.ops[1][::-1])
    with pytest.raises(ScheduleError, match="waits forever"):
        launch(job(replace(schedule, lists=rows), is_checked=False))


def test_weights_are_saved_whole_or_not_at_all(tmp_path):
    (tmp_path / "stage0.safetensors").mkdir()
    message = failure(faulty("plain", save=str(tmp_path)))
    told = f"rank 0 failed to write: save: {tmp_path}/stage0.safetensors: got something that is not a regular"
    assert message.startswith(told)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_pipelines_on_several_devices_are_refused_before_any_process_starts():
    with pytest.raises(ExecutionError, match="0AVERAGE: got its ranks 0, 2 on devices 0, 2, expected one"):
        launch(job(replace(build("avgpipe", 2, 4), rank_to_device=(0, 1, 2, 3))))


def test_a_wait_that_ends_without_files_tells_no_insides():
    told = "[enforce fail at /gloo/transport/tcp/device.cc:128] rv != -1. -1 vs -1. Too many open files"
    expected = r"^waited for rank 1: Too many open files; try a higher limit"
    with pytest.raises(PeerLost, match=expected), waiting_for("rank 1"):
        raise RuntimeError(told)
