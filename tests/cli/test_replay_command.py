"""``replay``, and the parts of an error in ``compare``."""

import json

import pytest

from pipesched.profiles.costs import uniform
from pipesched.schedules.builders import build
from pipesched.schedules.formats import timeline_to_json
from pipesched.simulator.engine import simulate_lists
from tests.hand_runs import run_by_hand


@pytest.fixture
def runs(folder):
    """Write a run of 8.2 s, whose works alone take 7.2 s, and a prediction of 6 s."""
    schedule = build("gpipe", num_ranks=2, num_microbatches=1)
    measured, predicted = run_by_hand(schedule, 0.1, 0.5, 1.2), simulate_lists(schedule, uniform(2, 1.0, 2.0))
    (folder / "measured.json").write_text(timeline_to_json(measured))
    (folder / "predicted.json").write_text(timeline_to_json(predicted))
    return folder


def test_a_run_alone_is_works_hand_over_and_rest(pipesched, runs):
    answer = pipesched("replay measured.json --wide")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[-1] == (
        "gpipe: with its own op times 12.2 % too fast: 12.2 % because messages and posting took longer, "
        "0.0 % unexplained"
    )


def test_with_costs_the_error_of_their_prediction_is_split(pipesched, runs):
    replay = json.loads(pipesched("replay measured.json --uniform f=1,b=2 --json").out)
    makespan = replay["split"]["parts"][0]
    parts = [makespan[name] for name in ("error_s", "costs_s", "hand_over_s", "rest_s")]
    assert parts == pytest.approx([-2.2, -1.2, -1.0, 0.0], abs=1e-12)
    assert replay["explanation"].startswith("gpipe: 26.8 % too fast: 14.6 % because ops ran slower than the costs say")
    assert (replay["split"]["messages"], replay["split"]["arrivals_seen"]) == (2, 2)


def test_files_of_a_replay_are_written(pipesched, runs):
    assert pipesched("replay measured.json --gantt both.png --out parts.json").code == 0
    assert (runs / "both.png").stat().st_size > 10_000
    assert json.loads((runs / "parts.json").read_text())["name"] == "gpipe"
