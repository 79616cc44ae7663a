import pytest

from pipesched.schedules import make_schedule
from pipesched.schedules.builders import build, build_generated
from pipesched.schedules.ops import forward
from pipesched.simulator import SimulationError
from pipesched.simulator.views import staleness_figure
from pipesched.simulator.views.staleness_figure import panels


def test_the_cells_are_the_staleness_of_each_stage_and_microbatch():
    behind, at_backward, held = panels(build_generated("pipedream", 3, 10**9), 5)
    assert behind.cells == at_backward.cells == ((0, 1, 2, 2, 2), (0, 1, 1, 1, 1), (0, 0, 0, 0, 0))
    assert held.cells == ((1, 2, 3, 3, 3), (1, 2, 2, 2, 2), (1, 1, 1, 1, 1))
    assert [panel.counts_versions for panel in (behind, at_backward, held)] == [False, False, True]


def test_what_prediction_leaves_has_a_panel_where_there_is_one():
    titles = [panel.title for panel in panels(build("pipeoptim", 3, 8), 8)]
    assert titles == ["F: steps behind", "F: steps behind, after look-ahead", "B: steps behind", "versions held at B"]
    assert len(panels(build("spectrain", 3, 8), 8)) == 5
    left = panels(build("pipeoptim", 3, 8), 6)[1]
    assert left.cells == ((0, 1, 2, 0, 0, 0), (0, 1, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0))


def test_a_run_shorter_than_asked_for_is_shown_whole():
    assert {len(row) for panel in panels(build("wpipe", 2, 4), 32) for row in panel.cells} == {4}


@pytest.mark.slow
def test_many_cells_and_an_op_without_a_backward_can_be_drawn():
    staleness_figure(build("pipeoptim", 8, 32), num_microbatches=32, title="many").draw_without_rendering()
    broken = make_schedule("broken", 1, 1, [[forward(0, 0)]])
    assert panels(broken, 4)[0].cells == ((None,),)
    staleness_figure(broken).draw_without_rendering()


def test_a_picture_of_no_micro_batch_is_refused():
    with pytest.raises(SimulationError, match=", expected "):
        staleness_figure(build("gpipe", 2, 2), 0)
