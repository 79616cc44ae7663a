"""The notebooks are shown as they ran, use the library alone, and still run, here with small sizes."""

import ast
import asyncio
import importlib
import json
import re
import sys
from pathlib import Path
from shutil import copytree
from types import ModuleType

import pytest

import pipesched

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SMALL = {
    "01_predict_and_run": {"NUM_RANKS": 2, "NUM_MICROBATCHES": 2, "ITERATIONS": 1},
    "02_real_traces": {},
    "03_plan_without_a_machine": {
        "MODEL": "gpt:layers=6,width=1024,heads=16,context=512,vocab=5120",
        "NUM_NODES": 1,
        "NUM_RANKS": 2,
        "NUM_MICROBATCHES": 4,
        "BATCH_SIZE": 8,
        "TIME_LIMIT_S": 1,
    },
    "04_staleness": {
        "DIGITS": "digits:blocks=4,width=8",
        "NUM_RANKS": 2,
        "DIGITS_STEPS": 2,
        "TEXT": "gpt:layers=4,width=8,heads=2,context=8",
        "TEXT_RANKS": 2,
        "TEXT_STEPS": 2,
        "SCHEMES": ["gpipe", "pipedream", "wpipe", "pipeoptim"],
        "STEPS_AHEAD": 2,
        "PREDICTED_STEPS": 12,
        "DEPTHS": (1, 2),
        "RATES": (0.01,),
        "DEPTH_STEPS": 2,
    },
    "05_tune": {
        "MODEL": "gpt:layers=2,width=16,heads=2,context=8",
        "BATCH_SIZE": 4,
        "MICROBATCHES": (1, 2),
        "PIPELINES": (1, 2),
        "ADVANCES": (0,),
        "REPEATS": 1,
        "ITERATIONS": 1,
    },
    "06_published_runs": {},
    "07_your_own_module": {
        "LAYERS": 2,
        "WIDTH": 16,
        "TOKENS": 8,
        "RESNET_DEPTHS": [1, 1, 1, 1],
        "RESNET_WIDTHS": [8, 8, 8, 8],
        "NUM_RANKS": 2,
        "NUM_MICROBATCHES": 2,
        "STEPS": 1,
    },
}
"""What the cell of parameters of each notebook says here instead."""
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind="code"):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def trees(path):
    return [ast.parse("".join(cell["source"])) for cell in cells(path)]


def nodes(path, kind):
    return [node for tree in trees(path) for node in ast.walk(tree) if isinstance(node, kind)]


def test_the_notebooks_are_numbered_without_a_gap_and_each_is_run_here():
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, len(NOTEBOOKS) + 1)]
    assert [path.stem for path in NOTEBOOKS] == list(SMALL)


@every_notebook
def test_a_notebook_was_run_from_top_to_bottom_without_an_error(path):
    code = cells(path)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert "error" not in [output["output_type"] for output in outputs]
    assert "stderr" not in [output.get("name") for output in outputs]
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/html", "text/markdown"} <= shown, "a picture, a table and a sentence that was computed"


@every_notebook
def test_a_notebook_imports_the_library_and_other_packages_alone(path):
    """Of the library it takes the names of ``import pipesched``, and rarer ones that a folder offers."""
    assert "pipesched" in [alias.name for node in nodes(path, ast.Import) for alias in node.names]
    for node in nodes(path, ast.ImportFrom):
        if node.module.split(".")[0] == "pipesched":
            assert {alias.name for alias in node.names} <= set(importlib.import_module(node.module).__all__)
    used = {
        node.attr
        for node in nodes(path, ast.Attribute)
        if isinstance(node.value, ast.Name) and node.value.id == "pipesched"
    }
    assert used <= set(pipesched.__all__)
    assert {name for name in used if isinstance(getattr(pipesched, name), ModuleType)} <= {"schedules"}


@every_notebook
def test_no_result_is_typed_by_hand_and_no_path_leads_elsewhere(path):
    """Numbers with a unit are computed by cells; a path is relative, and those of results have no folder."""
    prose = "\n".join("".join(cell["source"]) for cell in cells(path, "markdown"))
    typed = re.findall(r"[\d.]+ ?(?:%|x\b|times|(?:[mu]?s|[KMG]i?B)\b)[^\n]*", re.sub(r"`[^`]*`", "", prose))
    assert typed == []
    texts = [node.value for node in nodes(path, ast.Constant) if isinstance(node.value, str)]
    assert [text for text in texts if text.startswith(("/", "~")) and len(text) > 1] == []


def shown(value):
    """Return what a notebook shows of the last value of a cell: a table, a picture or a text."""
    shows = (getattr(value, name, None) for name in ("_repr_html_", "_repr_png_"))
    return next((drawn for show in shows if show is not None and (drawn := show())), None) or repr(value)


async def run_cells(path, parameters):
    """Run cells as a kernel does: one after the other in one namespace, while an event loop runs in this thread."""
    names = {"__name__": "__main__"}
    for cell, tree in zip(cells(path), trees(path), strict=True):
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            assert set(parameters) <= set(names), "the cell has these parameters"
            names |= parameters
        if last is not None:
            assert shown(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
        await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs_where_an_event_loop_does_and_leaves_nothing(monkeypatch, tmp_path, name, capsys):
    display = ModuleType("IPython.display")
    display.Markdown = str
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    folder = tmp_path / "notebooks"
    for name_of_files in ("traces", "published"):
        copytree(FOLDER / name_of_files, folder / name_of_files)
    copytree(FOLDER.parent / "profiles" / "data", tmp_path / "profiles" / "data")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(folder)
    asyncio.run(run_cells(FOLDER / f"{name}.ipynb", SMALL[name]))
    assert sorted(tmp_path.rglob("*")) == before
    assert capsys.readouterr().err == ""
