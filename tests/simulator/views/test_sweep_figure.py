"""The picture of a sweep, and its page."""

import re

import pytest

import pipesched
from pipesched.simulator import SimulationError
from pipesched.simulator.search import MEASURES, SETTING_COLUMNS, Outcome, Setting, ordered_by
from pipesched.simulator.views import save_figure, sweep_figure
from pipesched.simulator.views.heat_maps import short_number
from pipesched.workflows.sweeping import SweepResult
from tests.browser import opened


def outcomes(has_bytes=True):
    settings = [Setting(name, p, m) for name in ("1f1b", "zbv") for p in (2, 4) for m in (4, 8, 16)]
    return [
        Outcome(setting, seconds=1.0 * number, held_bytes=2**30 * (20 - number) if has_bytes else None,
                     is_judged=True, reason="over memory: device 0" if number == 1 else None)
        for number, setting in enumerate(settings, 1)
    ]  # fmt: skip


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_there_is_a_map_for_each_schedule_and_the_best_that_fits_is_framed():
    figure = sweep_figure(outcomes(), "makespan_s")
    first, second, bar, front = (axes for part in figure.subfigs for axes in part.axes)
    assert [label.get_text() for label in bar.get_yticklabels()] == ["1", "7", "12"]
    assert [text.get_text() for text in figure.subfigs[0].legends[0].get_texts()] == ["best that fits", "does not fit"]
    assert [axes.get_title(loc="left") for axes in (first, second, front)] == ["1f1b", "zbv", "every setting"]
    assert texts(first) == ["4", "5", "6", "1", "2", "3"]  # four ranks above two
    assert first.get_images()[0].get_clim() == second.get_images()[0].get_clim() == (1, 12)
    (hatched, framed), none = [[*axes.patches] for axes in (first, second)]
    assert (hatched.get_xy(), framed.get_xy(), none) == ((-0.5, 0.5), (0.5, 0.5), [])  # 1 s does not fit, 2 s does
    assert texts(front) == [str(number) for number in range(1, 10)]
    named = [text.get_text() for text in figure.subfigs[1].legends[0].get_texts()]
    assert named[:4] == ["1f1b", "zbv", "over memory", "Pareto front"]
    assert (named[4], named[-1], len(named)) == ("1: 1f1b p=2 m=8", "9: zbv p=4 m=16", 4 + 9)


def test_no_number_of_the_front_lies_over_a_point_or_outside_of_the_axes():
    figure = sweep_figure(outcomes(), "makespan_s")
    figure.draw_without_rendering()
    (front,) = figure.subfigs[1].axes
    points = front.transData.transform([(20 - number, number) for number in range(1, 13)])
    for extent in [text.get_window_extent() for text in front.texts]:
        assert front.bbox.x0 < extent.x0 < extent.x1 < front.bbox.x1
        assert front.bbox.y0 < extent.y0 < extent.y1 < front.bbox.y1
        assert not any(extent.contains(*point) for point in points)


@pytest.mark.slow
def test_no_legend_is_cut_off_and_no_two_schedules_look_alike():
    name = "a/very/long/path/to/a/module/of/mine.py:my_own_builder"
    settings = [Setting(f"{name}{index}", 4, m, 2) for index in range(15) for m in (4, 8)]
    many = [Outcome(setting, seconds=1.0 + number, held_bytes=2**30 * (40 - number))
            for number, setting in enumerate(settings)]  # fmt: skip
    figure = sweep_figure(many, "makespan_s")
    figure.draw_without_rendering()
    (legend,) = figure.subfigs[1].legends
    for text in legend.get_texts():
        extent = text.get_window_extent()
        assert figure.subfigs[1].bbox.x0 <= extent.x0 < extent.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= extent.y0
    points = figure.subfigs[1].axes[0].collections[:15]
    looks = {(tuple(dots.get_facecolor()[0]), len(dots.get_paths()[0].vertices)) for dots in points}
    assert len(looks) == 15


def test_points_of_the_front_that_touch_share_a_number():
    near = [Outcome(Setting("1f1b", 2, m), seconds=seconds, held_bytes=held) for m, seconds, held in
            [(4, 1.0, 2**34), (8, 1.001, 2**34 - 1), (16, 3.0, 2**31)]]  # fmt: skip
    (front,) = sweep_figure(near, "makespan_s").subfigs[1].axes
    assert texts(front) == ["1, 2", "3"]


def test_without_bytes_there_are_the_maps_alone(tmp_path):
    first, second, _bar = sweep_figure(outcomes(has_bytes=False), "makespan_s").axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["1f1b", "zbv"]
    save_figure(lambda: sweep_figure(outcomes(), "makespan_s"), tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_where_nothing_could_be_predicted_there_is_no_picture():
    with pytest.raises(SimulationError, match="got no setting with makespan_s"):
        sweep_figure([Outcome(Setting("1f1b", 2, 4), reason="none")], "makespan_s")


@pytest.mark.slow
def test_a_page_has_the_table_and_the_picture(tmp_path):
    page = tmp_path / "sweep.html"
    columns = (*SETTING_COLUMNS, *MEASURES)
    setup = pipesched.Setup(pipesched.DeviceCost(1.0, 2.0))
    page.write_text(SweepResult(ordered_by(outcomes(), "makespan_s"), "makespan_s", columns, setup).page())
    shown, console = opened(page, tmp_path)
    assert console == []
    assert "12 settings, 1 over memory, best by makespan_s" in shown
    table = re.search(r'<div id="candidates">.*?</table>', shown, re.DOTALL)[0]
    rows = [re.findall(r"<td[^>]*>([^<]*)", row) for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)]
    assert next(row[:3] for row in rows if row) == ["1f1b", "2", "8"]
    heads = re.findall(r"<button>([^<]*)", table)
    assert (heads[:3], {"makespan", "memory"} <= set(heads)) == (["schedule", "p", "m"], True)
    assert len(rows) == 1 + 12
    assert 'src="data:image/svg+xml;base64,' in shown


@pytest.mark.parametrize("noise", [-1e-14, 0.0, 1e-14])
def test_cells_of_values_that_differ_by_rounding_errors_have_the_same_number(noise):
    assert short_number(41.25 + noise) == "41.2"
    assert short_number(1234.5 + noise * 100) == "1234"
