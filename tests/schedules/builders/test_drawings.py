"""The builders make the lists that the docstrings of their modules draw."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from pipesched.schedules import builders
from pipesched.schedules.builders import build
from tests.schedules.drawings import cells, drawn


def plain(op):
    return f"{op.phase.value}{op.microbatch}"


def with_version(op):
    return f"{plain(op)}@{op.version}" + (f"+{op.lookahead}" if op.lookahead else "")


def with_stage_and_version(op):
    return f"{op.stage}{with_version(op)}"


DRAWN = [
    ("avgpipe", 0, build("avgpipe", 2, 6), plain),
    ("chimera", 0, build("chimera", 4, 4), str),
    ("controllable_memory", 2, build("v_half", 3, 3), str),
    ("gems", 0, build("gems", 4, 3), str),
    ("gpipe", 0, build("gpipe", 3, 4), plain),
    ("hanayo", 0, build("hanayo", 2, 2, waves=2), str),
    ("interleaved", 0, build("interleaved", 2, 4, 2), str),
    ("interleaved_zero_bubble", 0, build("interleaved_zb", 2, 4, 2), str),
    ("looped_bfs", 0, build("looped_bfs", 2, 3, 2), str),
    ("naive", 0, build("naive", 3, 2), plain),
    ("one_f_one_b", 0, build("1f1b", 3, 4), plain),
    ("wpipe", 0, build("wpipe", 2, 4, accumulate=2), with_stage_and_version),
    ("zbv", 0, build("zbv", 2, 3), str),
    ("zero_bubble", 0, build("zb_h1", 3, 4), plain),
    ("zero_bubble", 1, build("zb_h2", 3, 6), plain),
    ("zero_bubble_auto", 0, build("zb_auto", 3, 6, limit=4), plain),
]
"""Module, place of the drawing in its docstring, the list, and the words of a cell."""
DRAWN_WITHOUT_AN_END = [
    ("one_f_one_b_rr", 0, build("1f1b_rr", 3, 8, replicas=(2, 1)), with_version),
    ("pipedream", 0, build("pipedream", 3, 8), with_version),
    ("pipedream", 1, build("pipedream_2bw", 2, 8, accumulate=2), with_version),
    ("stale_weights", 0, build("stale_weights", 3, 9), with_version),
    ("stale_weights", 1, build("hybrid", 3, 4, pipelined=2), with_version),
    ("weight_prediction", 0, build("pipeoptim", 3, 8), with_version),
]


TESTED_APART = {"data_parallel", "dualpipe"}


def test_every_module_of_a_builder_is_drawn():
    modules = {path.stem for path in Path(builders.__file__).parent.glob("[!_]*.py")}
    builder_modules = {module for module in modules if not module.startswith("catalogue")}
    assert {module for module, *_ in (*DRAWN, *DRAWN_WITHOUT_AN_END)} | TESTED_APART == builder_modules


def test_data_parallel_is_as_drawn():
    names = {"0REDUCE_GRAD": "Reduce", "0STEP": "Step"}
    rows = [[names.get(str(op), str(op)[1:]) for op in row] for row in build("data_parallel", 3, 7).ops]
    assert rows == drawing_of("data_parallel", 0)


def drawing_of(module, place):
    """Return the cells of a drawing in the docstring of a module of a builder."""
    docstring = import_module(f"pipesched.schedules.builders.{module}").__doc__
    return cells(re.findall(r"(?:^ +rank \d.*\n)+", docstring, re.MULTILINE)[place])


@pytest.mark.parametrize(("module", "place", "schedule", "cell"), DRAWN)
def test_a_list_is_as_drawn(module, place, schedule, cell):
    assert drawn(schedule, cell=cell) == drawing_of(module, place)


@pytest.mark.parametrize(("module", "place", "schedule", "cell"), DRAWN_WITHOUT_AN_END)
def test_the_first_columns_of_a_list_are_as_drawn(module, place, schedule, cell):
    """With these micro-batches the columns that are drawn are still steady."""
    expected = drawing_of(module, place)
    assert len(expected[0]) > 8
    assert drawn(schedule, columns=len(expected[0]), cell=cell) == expected
