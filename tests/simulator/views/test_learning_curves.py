"""Learning curves as a picture."""

import math
from statistics import fmean, stdev

import pytest

from pipesched.simulator import SimulationError
from pipesched.simulator.views import Curve, learning_curve_figure, mean_curve, save_figure, smoothed


def test_a_smoothed_loss_is_the_mean_of_the_last_ones():
    assert smoothed([4.0, 2.0, 6.0, 0.0], 2) == [4.0, 3.0, 4.0, 3.0]
    assert smoothed([1.0, 2.0], 5) == [1.0, 1.5]


def test_curves_are_drawn_also_of_a_run_that_diverged(tmp_path):
    path = tmp_path / "c.svg"
    losses = tuple(2.0 / (step + 1) for step in range(60))
    curves = [
        Curve("gpipe", losses, tuple(map(float, range(60)))),
        Curve("pipedream", (2.0, 3.0, math.nan), (0.1, 0.2, 0.3), has_diverged=True),
        Curve("other", (2.0, 30.0), (0.1, 0.2), has_diverged=True),
    ]
    save_figure(lambda: learning_curve_figure(curves, "a title", target_loss=0.5), path)
    assert path.stat().st_size > 1000


def test_without_times_there_is_one_panel_with_the_names(tmp_path):
    save_figure(lambda: learning_curve_figure([Curve("alone", (1.0, 0.0))]), tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    assert ">optimizer step</text>" in text
    assert ">predicted wall time" not in text


@pytest.mark.parametrize("num_steps", [2, 20])
def test_the_ticks_of_steps_are_whole(num_steps):
    axes = learning_curve_figure([Curve("alone", (1.0,) * num_steps)]).axes[0]
    assert all(tick == round(tick) for tick in axes.get_xticks())


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        (Curve("gpipe", ()), "got no curve with a step"),
        (Curve("gpipe", (math.nan, math.inf)), "got no finite loss, expected at least one; try "),
        (Curve("gpipe", (math.nan,), has_diverged=True), "got no finite loss"),
        (Curve("gpipe", (1.0, 2.0), (1.0,)), "gpipe: got 1 times, expected 2, one for each loss"),
    ],
)
def test_losses_that_cannot_be_drawn_are_refused_in_one_line(curve, words):
    with pytest.raises(SimulationError, match=words) as caught:
        learning_curve_figure([curve])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_diverged_at_once_is_a_cross_beside_the_others(tmp_path, is_first):
    curves = [Curve("gpipe", (1.0, 0.5), (1.0, 2.0)), Curve("other", (math.inf,), (1.0,), has_diverged=True)]
    save_figure(lambda: learning_curve_figure(curves[::-1] if is_first else curves), tmp_path / "c.svg")
    assert (tmp_path / "c.svg").stat().st_size > 1000


@pytest.mark.parametrize(("losses", "top"), [((2.0, 1.0), 2.0), ((2.0, 6.0), 6.0), ((2.0, 1e9), 20.0)])
def test_a_curve_is_shown_up_to_its_highest_loss_or_far_above_its_first(losses, top):
    assert top < learning_curve_figure([Curve("gpipe", losses)]).axes[0].get_ylim()[1] < 1.2 * top


@pytest.mark.parametrize(
    "losses",
    [
        [2.3 - 0.01 * step for step in range(20)],  # hardly falls
        [5.0] + [1.5] * 60,  # falls at once
        [2.3 - 0.01 * step if step != 50 else 9.0 for step in range(100)],  # one outlier
        [5.0 * 0.9**step for step in range(100)],
    ],
    ids=["flat", "steep", "outlier", "exponential"],
)
def test_smoothed_curves_use_most_of_the_height(losses):
    (axes,) = learning_curve_figure([Curve("gpipe", tuple(losses))]).axes
    smooth = smoothed(losses, max(1, len(losses) // 20))
    (_, low), (_, high) = axes.transLimits.transform(axes.transScale.transform([(0, min(smooth)), (0, max(smooth))]))
    assert 0 <= low < 0.25
    assert 0.75 < high <= 1


def test_the_target_loss_is_inside_of_the_axes():
    (axes,) = learning_curve_figure([Curve("gpipe", (2.0, 1.9, 1.8))], target_loss=0.5).axes
    assert axes.get_ylim()[0] < 0.5


def test_several_seeds_have_a_mean_and_a_band_of_one_standard_deviation():
    runs = [(4.0, 3.0, 2.0), (2.0, 1.0, 2.0), (3.0, 2.0)]
    mean = mean_curve([Curve("gpipe", losses, (1.0, 2.0, 3.0)[: len(losses)]) for losses in runs])
    assert mean.losses == (3.0, 2.0, 2.0)
    assert (mean.name, mean.times_s, mean.runs) == ("gpipe", (1.0, 2.0, 3.0), tuple(runs))
    axes = learning_curve_figure([mean]).axes[0]
    (line,), (band,) = axes.lines, axes.collections
    assert list(line.get_ydata()) == [3.0, 2.0, 2.0]
    edges = {tuple(point) for point in band.get_paths()[0].vertices}
    assert {(0.0, 2.0), (0.0, 4.0), (1.0, 1.0), (1.0, 3.0), (2.0, 2.0)} <= edges  # deviations 1, 1 and 0
    assert axes.get_ylim()[0] < 1.0 < 4.0 < axes.get_ylim()[1]


@pytest.mark.parametrize(
    ("runs", "lowest"),
    [
        (((3.0, 2.0), (3.0, 1.0)), 1.5 - math.sqrt(0.5)),  # two runs spread by more than their distance from the mean
        (((5.0, 9.0), (5.0, 1.0)), 0.5),  # a band below 0 is cut at half of the lowest loss
    ],
)
def test_a_band_is_inside_of_the_axes(runs, lowest):
    (axes,) = learning_curve_figure([mean_curve([Curve("gpipe", losses) for losses in runs])]).axes
    assert 0.8 * lowest < axes.get_ylim()[0] < lowest
    highest = max(fmean(step) + stdev(step) for step in zip(*runs, strict=True))
    assert axes.get_ylim()[1] > highest


def test_a_seed_that_diverged_marks_the_mean_and_one_seed_is_its_own_mean():
    alone = Curve("gpipe", (1.0, 2.0))
    assert mean_curve([alone]) is alone
    assert mean_curve([alone, Curve("gpipe", (1.0, math.inf), has_diverged=True)]).has_diverged
