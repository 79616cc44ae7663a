import math
from dataclasses import replace

import pytest
from matplotlib.text import Text

from pipesched.simulator import SimulationError
from pipesched.simulator.search import Outcome
from pipesched.simulator.tuner import Space, search_settings, tuned
from pipesched.simulator.views import heat_map_figure
from tests.simulator.tuner.problems import problem


def test_they_are_drawn_where_nothing_fits_and_of_one_setting():
    outcomes = search_settings(problem(memory_bytes=1), Space(3, (8,)).settings())
    figure = heat_map_figure(outcomes, "a model")
    figure.draw_without_rendering()
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= {"does not fit"}


IMPOSSIBLE = Outcome(tuned("avgpipe", 3, 2, 1, 0), reason="got 3 stages for 2 layers")


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([], "got 0 without a time and a peak memory, expected at least one with both"),
        ([IMPOSSIBLE], "expected at least one with both; of the first: got 3 stages for 2 layers"),
        ([replace(IMPOSSIBLE, seconds=1.0)], "got 1 without a time and a peak memory"),
        ([replace(IMPOSSIBLE, seconds=math.inf, held_bytes=1)], "got 1 without a time"),
    ],
)
def test_heat_maps_that_cannot_be_drawn_are_refused_in_one_line(outcomes, words):
    with pytest.raises(SimulationError, match=words) as caught:
        heat_map_figure(outcomes)
    assert "\n" not in str(caught.value)


def test_a_setting_that_is_not_known_is_left_out_and_one_that_takes_nothing_is_drawn():
    values = {1: (0.0, 0), 2: (0.0, 4096), 4: (2.0, 0), 8: (1.0, 2**20)}
    known = [Outcome(tuned("avgpipe", 3, m, 1, 0), *measures) for m, measures in values.items()]
    figure = heat_map_figure([IMPOSSIBLE, *known])
    figure.draw_without_rendering()
    assert len(figure.axes) == 5  # seconds and bytes with a bar each, and both


@pytest.mark.parametrize(("pipelines", "is_said"), [((1,), False), ((1, 2), True)])
def test_several_pipelines_are_said_to_be_averaged(pipelines, is_said):
    outcomes = search_settings(problem(), Space(3, (4, 8), pipelines).settings())
    text = "\n".join(text.get_text() for text in heat_map_figure(outcomes).findobj(Text))
    assert "micro-batches M of each pipeline" in text
    assert "fits, plain" in text
    assert ("fits, elastic averaging" in text) == ("above 1: elastic averaging" in text) == is_said


def test_maps_have_their_scale_of_colours_and_say_what_frames_and_hatching_mean():
    outcomes = search_settings(problem(memory_bytes=9000), Space(3, (2, 4, 8), (1, 2)).settings())
    figure = heat_map_figure(outcomes)
    seconds = [outcome.seconds for outcome in outcomes]
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert len(bars) == 2
    shown = [float(text.get_text()) for text in bars[0].get_yticklabels()]
    assert (shown[0], shown[-1]) == (pytest.approx(min(seconds), rel=5e-3), pytest.approx(max(seconds), rel=5e-3))
    texts = {text.get_text() for text in figure.legends[0].get_texts()}
    assert texts == {"fastest that fits", "Pareto front", "does not fit"}


def test_where_no_bytes_are_known_there_is_a_map_of_the_time_alone():
    outcomes = [Outcome(tuned("avgpipe", 3, m, 1, 0), float(m), 0) for m in (2, 4)]
    axes, bar = heat_map_figure(outcomes).axes
    assert (axes.get_title(loc="left") or axes.get_title(), bar.get_label()) == ("time per batch [s]", "<colorbar>")
