"""Pictures as files."""

import time

import pytest
from matplotlib.figure import Figure

from pipesched.simulator.views.figure import save_figure


def drawn():
    figure = Figure()
    figure.subplots().plot([0, 1, 4])
    return figure


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_the_same_picture_is_the_same_file_whenever_it_is_drawn(suffix, tmp_path, monkeypatch):
    begun_s = time.time()
    for name in ("first", "second"):
        save_figure(drawn, tmp_path / f"{name}.{suffix}")
        monkeypatch.setattr("time.time", lambda: begun_s + 100)
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("first", "second"))
    assert first == second
