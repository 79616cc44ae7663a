"""Pictures as files."""

import time

import pytest

from pipesched.simulator import SimulationError
from pipesched.simulator.views.figure import save_figure
from pipesched.simulator.views.shown_figure import ShownFigure


def drawn():
    figure = ShownFigure()
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


def test_every_figure_has_its_letters_as_text_whoever_saves_it(tmp_path):
    figure = drawn()
    figure.suptitle("a title")
    for name, figure_path in {"ours": None, "caller's": figure}.items():
        for suffix in ("svg", "pdf"):
            path = tmp_path / f"{name}.{suffix}"
            save_figure(lambda: figure, path) if figure_path is None else figure.savefig(path)
        assert ">a title</text>" in (tmp_path / f"{name}.svg").read_text()
        assert b"/Type3" not in (tmp_path / f"{name}.pdf").read_bytes()
        assert (
            b"/TrueType" in (tmp_path / f"{name}.pdf").read_bytes()
            or b"/Type0" in (tmp_path / f"{name}.pdf").read_bytes()
        )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.bmp", "got suffix '.bmp', expected .png or .svg or .pdf"),
        ("x", "got suffix '', expected"),
        ("missing/x.png", "got no folder"),
        ("a\0b.png", "expected a file that can be written"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_in_one_line(tmp_path, name, words):
    with pytest.raises(SimulationError, match=words) as caught:
        save_figure(drawn, tmp_path / name)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
