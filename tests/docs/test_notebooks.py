"""The notebooks are shown as they ran, and what they use is still there."""

import ast
import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
CHANGED = {
    "01_predict_and_run": {"2), 4)": "2), 2)", "4, 16)": "2, 2)", "iterations=3": "iterations=1", "/tmp/": ""},
    "04_staleness": {
        "torch.set_num_threads(1)": "",
        'pd.set_option("display.max_colwidth", None)': "",
        "num_ranks=8, num_microbatches=96": "num_ranks=3, num_microbatches=12",
        "STEPS, BATCH = 4, 40, 32": "STEPS, BATCH = 4, 2, 8",
    },
}
"""Notebooks that run, or train: what their cells say, and what they say here to be quick and leave nothing changed."""
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_from_top_to_bottom_without_an_error(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert "error" not in kinds
    shown = {kind for cell in cells for output in cell["outputs"] for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= shown, "a picture and a table"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_imports_is_there(path):
    sources = ["".join(cell["source"]) for cell in code_cells(path)]
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] != "IPython":
            module = import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


def shown(value):
    """Return what a notebook shows of the last value of a cell: a table, a picture or a text."""
    shows = (getattr(value, name, None) for name in ("_repr_html_", "_repr_png_"))
    return next((drawn for show in shows if show is not None and (drawn := show())), None) or repr(value)


async def run_cells(sources):
    """Run cells as a kernel does: one after the other in one namespace, while an event loop runs in this thread."""
    names = {"__name__": "__main__"}
    for source in sources:
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            shown(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
        await asyncio.sleep(0)
    return names


@pytest.mark.parametrize("name", CHANGED)
def test_a_notebook_runs_where_an_event_loop_does(monkeypatch, tmp_path, name, capsys):
    """Up to its first run, or training; what is shown is written where nobody reads, and has no file number."""
    display = ModuleType("IPython.display")
    display.Image, display.Markdown = Path, str
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    (tmp_path / "profiles").symlink_to(FOLDER.parent / "profiles")
    monkeypatch.chdir(tmp_path)
    sources = ["".join(cell["source"]) for cell in code_cells(FOLDER / f"{name}.ipynb")]
    last = next(index for index, source in enumerate(sources) if "pipesched.run(" in source or ".train(" in source)
    for said, changed in CHANGED[name].items():
        assert any(said in source for source in sources), said
        sources = [source.replace(said, changed) for source in sources]
    names = asyncio.run(run_cells(sources[: last + 1]))
    assert shown(names.get("measured", names.get("trained"))).startswith("<")
    assert capsys.readouterr().err == ""
