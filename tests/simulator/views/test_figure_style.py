"""The size and font of a picture."""

import pytest
from matplotlib.text import Text

from pipesched import DeviceCost, SimulationError, build, gantt, simulate
from pipesched.simulator.views import FigureStyle


def predicted():
    return simulate(build("1f1b", 4, 8), DeviceCost(forward_s=1.0, backward_s=2.0))


def test_a_chart_has_the_size_and_the_font_that_are_asked_for():
    usual = gantt(predicted()).plot()
    figure = gantt(predicted(), style=FigureStyle(3.5, 2.0, "serif", 7.0)).plot()
    assert tuple(figure.get_size_inches()) == pytest.approx((3.5, 2.0))
    assert {text.get_fontfamily()[0] for text in figure.findobj(Text)} == {"serif"}
    ranks = [
        next(t.get_fontsize() for t in drawn.findobj(Text) if t.get_text() == "rank 0") for drawn in (usual, figure)
    ]
    assert ranks[1] / ranks[0] == pytest.approx(0.7)


@pytest.mark.parametrize(
    "style", [FigureStyle(), FigureStyle(3.5, 2.0, font_size=7.0), FigureStyle(20, 4, "serif", 16)]
)
def test_every_text_of_a_chart_lies_inside_of_the_picture(style):
    figure = gantt(predicted(), style=style).plot()
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for text in [*figure.texts, *axes.texts, *(text for legend in figure.legends for text in legend.get_texts())]:
        extent = text.get_window_extent()
        if text.get_text().strip():
            assert -1 <= extent.x0 < extent.x1 <= figure.bbox.x1 + 1, text.get_text()
            assert -1 <= extent.y0 < extent.y1 <= figure.bbox.y1 + 1, text.get_text()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width_in": 0}, "picture: got a width of 0 inches, expected above 0, at most 100"),
        ({"height_in": float("nan")}, "picture: got a height of nan inches"),
        ({"font_size": -1}, "picture: got a font size of -1 points"),
        ({"font": "No Such Font"}, "picture: got font 'No Such Font', expected an installed font, serif"),
    ],
)
def test_a_style_that_cannot_be_is_refused_in_one_line(fields, words):
    with pytest.raises(SimulationError, match=words) as caught:
        FigureStyle(**fields)
    assert "\n" not in str(caught.value)


def test_a_size_without_room_for_the_rows_says_the_least_that_has_room():
    with pytest.raises(SimulationError, match=r"expected at least 2.2 x 2.1 inches"):
        gantt(predicted(), style=FigureStyle(1, 1)).plot()
    assert gantt(predicted(), style=FigureStyle(2.2, 2.1)).plot()
