"""Graphs of PipeDream whose file gives the stage of each node."""

import json

import pytest

LINE = (
    "n{0} -- L -- forward_compute_time=10.0, backward_compute_time=20.0, activation_size=1000.0, "
    "parameter_size=4000.0 -- stage_id={1}"
)


@pytest.fixture
def staged(folder):
    """Write a chain of six equal nodes, two in stage 0 and four in stage 1."""
    nodes = [LINE.format(number, int(number > 2)) for number in range(1, 7)]
    edges = [f"\tn{number} -- n{number + 1}" for number in range(1, 6)]
    (folder / "staged.graph.txt").write_text("\n".join(nodes + edges))


@pytest.mark.usefixtures("staged")
def test_a_schedule_of_as_many_stages_takes_those_of_the_file(pipesched):
    """1F1B of 2 stages: the last works 4 x 120 ms, after 20 ms on the first, before 40 ms there."""
    command = "simulate -s 1f1b -p 2 -m 4 --profile staged.graph.txt"
    answer = json.loads(pipesched(f"{command} --json").out)
    assert answer["makespan_s"] == pytest.approx(0.54)
    assert not any("stage_id" in note for note in answer["notes"])
    assert json.loads(pipesched(f"{command} --partition 3,3 --json").out)["makespan_s"] == pytest.approx(0.45)
    assert json.loads(pipesched(f"{command} --partition balanced --json").out)["makespan_s"] == pytest.approx(0.45)


@pytest.mark.usefixtures("staged")
def test_sweeps_and_tunings_take_the_stages_of_the_file(pipesched):
    swept = json.loads(pipesched("sweep -s 1f1b -p 2,3 -m 4 --profile staged.graph.txt --json").out)
    assert sorted(row["makespan_s"] for row in swept["settings"]) == pytest.approx([0.36, 0.54])
    assert any("stage_id" in note for note in swept["notes"])
    assert "--partition 2,4" in pipesched("tune staged.graph.txt -p 2 -b 4 --schedule 1f1b").out


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize(
    "command",
    [
        "simulate -s 1f1b -p 3 -m 4 --profile staged.graph.txt",
        "tune staged.graph.txt -p 3 -b 4 --schedule 1f1b",
        "plan staged.graph.txt -b 4 --devices 2",
        "partition staged.graph.txt -p 2",
    ],
)
def test_stages_that_are_not_taken_are_named(pipesched, command):
    assert "the graph gives 2 stages of 2,4 layers (stage_id)" in " ".join(pipesched(command).out.split())
