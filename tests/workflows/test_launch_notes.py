"""If one thread launches the ops of all ranks, every result of the run reports the launch time."""

from dataclasses import replace

import pytest

import pipesched
from pipesched.executor.runs import Measured
from pipesched.profiles.costs import uniform
from pipesched.questions import ScheduleCounts
from pipesched.schedules import Yardstick
from pipesched.schedules.builders import build
from pipesched.simulator.analysis import compare_timelines
from pipesched.simulator.engine import simulate_lists
from pipesched.workflows.arguments import read_schedule_argument
from pipesched.workflows.measuring import result_of
from pipesched.workflows.timelines import explain_error
from pipesched.workflows.verifying import (
    MachineDrift,
    RoundsVerification,
    ScheduleRounds,
    Verification,
    VerifiedSchedule,
)
from tests.hand_runs import run_by_hand
from tests.profiles.hand_profiles import layer, profile

COUNTS = {"num_ranks": 2, "num_microbatches": 4}


def of(name, device="cuda", launch_share=1.0):
    """A schedule that was predicted, and run with messages of 0.5 s; launching took a share of the run."""
    schedule = build(name, **COUNTS)
    measured, predicted = run_by_hand(schedule, 0.0, 0.5), simulate_lists(schedule, uniform(2, 1.0, 2.0))
    launch_s = launch_share * measured.makespan_s
    measured = replace(measured, yardstick=Yardstick(device, 1, 1.0), launch_s=launch_s)
    compared = compare_timelines(predicted, measured)
    return VerifiedSchedule(predicted, measured, compared, explain_error(measured, predicted), 1.0, 1.0, 0.0)


GPIPE = of("gpipe")


def results(verified):
    """Yield a result of each kind, of a run and a prediction of it."""
    measured = Measured(verified.measured, (verified.measured.makespan_s,), ())
    yield "run", result_of(read_schedule_argument("gpipe", ScheduleCounts(**COUNTS)), measured)
    yield "compare", pipesched.compare_runs(verified.predicted, verified.measured)
    yield "what_if", pipesched.what_if(verified.measured, schedule="1f1b", draws=1)
    yield "replay", pipesched.replay(verified.measured)
    yield "verify", Verification((verified,), profile(layer()))
    yield "verify_rounds", RoundsVerification((ScheduleRounds((verified, verified)),), MachineDrift((1.0,) * 6))


KINDS = ["run", "compare", "what_if", "replay", "verify", "verify_rounds"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_of_such_a_run_says_so_and_one_of_a_process_per_rank_has_no_such_note(kind):
    result = dict(results(GPIPE))[kind]
    (note,) = result.notes
    assert note.endswith("which bounds the run: try larger micro-batches, or `transport=processes`")
    assert note in result._repr_html_()
    in_processes = replace(GPIPE, measured=replace(GPIPE.measured, launch_s=None))
    assert dict(results(in_processes))[kind].notes == []


def test_several_schedules_are_named_in_what_is_said_of_them():
    notes = Verification((GPIPE, of("1f1b", launch_share=0.5)), profile(layer())).notes
    assert [note.split(" in ")[0] for note in notes] == [
        f"{name}: one thread launched the ops of all ranks" for name in ("gpipe", "1f1b")
    ]
    same = Verification((of("gpipe", "cpu"), of("1f1b", "cpu")), profile(layer())).notes
    assert same == ["gpipe, 1f1b: all ranks took turns on one thread of a CPU: none of their ops overlap"]


def test_of_two_runs_each_is_named():
    other = replace(GPIPE.measured, launch_s=None)
    (note,) = pipesched.compare_runs(other, GPIPE.measured).notes
    assert note.startswith("run 2: one thread launched")
