"""The picture of a race has each contender where its lag is."""

import math

from pipesched.simulator.search import Lag
from pipesched.simulator.views import lag_figure


def test_a_contender_is_drawn_at_its_lag_with_its_interval_where_there_is_one():
    lags = {"first": None, "clear": Lag(0.2, 0.1, 0.3), "open": Lag(0.1, -0.1, 0.3), "once": Lag(0.5, -1.0, math.inf)}
    (axes,) = lag_figure(lags, "a race").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(lags)
    _, *lines = axes.lines  # the first is that of the leader
    drawn = {}
    for line in lines:
        row = int(line.get_ydata()[0])
        drawn.setdefault(row, []).append([round(x) for x in line.get_xdata()])
    assert drawn == {0: [[0], [0, 0]], 1: [[20], [10, 30]], 2: [[10], [-10, 30]], 3: [[50], [0, 1]]}
    assert [line.get_linestyle() for line in lines][-1] == ":"  # from edge to edge, as it is not known how far
    colours = {row: next(line.get_color() for line in lines if line.get_ydata()[0] == row) for row in drawn}
    assert colours[0] == colours[1] != colours[2] == colours[3]
