import pytest

from pipesched.simulator.tuner.picture import draw_heat_maps
from pipesched.simulator.tuner.search import search
from pipesched.simulator.tuner.setting import Space
from tests.simulator.tuner.problems import problem

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", STARTS)
def test_heat_maps_are_written_by_their_suffix(tmp_path, suffix):
    outcomes = search(problem(memory_bytes=9000), Space((2, 4, 8), (1, 2), (0, 1)).settings())
    assert {outcome.fits for outcome in outcomes} == {True, False}
    draw_heat_maps(outcomes, tmp_path / f"map{suffix}", "a model")
    assert (tmp_path / f"map{suffix}").read_bytes().startswith(STARTS[suffix])


@pytest.mark.parametrize("memory_bytes", [1, None])
def test_they_are_drawn_where_nothing_fits_and_of_one_setting(tmp_path, memory_bytes):
    outcomes = search(problem(memory_bytes=memory_bytes), Space((8,)).settings())
    draw_heat_maps(outcomes, tmp_path / "map.png")
    assert (tmp_path / "map.png").is_file()
