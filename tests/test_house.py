"""The rooms: what they export, what importing them loads, and that no imports run in a circle."""

import ast
import importlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.processes import run

PACKAGE = Path(__file__).parents[1] / "pipesched"
HEAVY = ("simpy", "torch", "numba", "scipy", "pandas", "matplotlib", "pydantic", "typer", "rich")
COMMAND_LINE = "pipesched.cli"
NO_NOUNS = {"found", "each", "one", "mine", "theirs", "ours"}
"""What no variable, argument or function is called: it says nothing of the thing."""
GIVEN = re.compile(rf"\b(?:{'|'.join(NO_NOUNS)})\s*(?:[](),:=]|in\b|for\b|[-+*/|]=)")
"""How such a name looks where it is given; text may look so, too, and code decides."""


def files(*roots: Path) -> Iterator[Path]:
    """Yield every file of the folders, also below the links of the package to the four."""
    folders = list(roots)
    while folders:
        for entry in sorted(folders.pop().iterdir()):
            if entry.is_dir() and entry.name != "__pycache__":
                folders.append(entry)
            elif entry.suffix == ".py":
                yield entry


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def import_nodes(file: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(parsed(file)) if isinstance(node, ast.Import | ast.ImportFrom)]


def module_name(file: Path) -> str:
    parts = ("pipesched", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in files(PACKAGE)}
ROOMS = sorted(name for name, file in MODULES.items() if file.name == "__init__.py")


def exports(room: str) -> dict[str, str]:
    """Return the module that each name of the room's stub is defined in."""
    stub = MODULES[room].with_suffix(".pyi")
    if not stub.exists():
        return {}
    return {
        alias.name: f"{room}.{node.module}" if node.module else f"{room}.{alias.name}"
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


EXPORTS = {room: exports(room) for room in ROOMS}


def home(module: str, name: str) -> str:
    """Return the module that ``from module import name`` loads, through as many rooms as it takes."""
    while (inner := EXPORTS.get(module, {}).get(name)) is not None and inner != module:
        module = inner
    return f"{module}.{name}" if f"{module}.{name}" in MODULES and name not in EXPORTS.get(module, {}) else module


def imports(file: Path) -> Iterator[str]:
    """Yield every module of ours that `file` imports: at its top, in functions, and for types alone."""
    for node in import_nodes(file):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pipesched":
            yield from (home(node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)


def public_names(file: Path) -> Iterator[str]:
    """Yield the public classes, functions, aliases and constants that `file` defines."""
    for node in parsed(file).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def side_by_side(importer: str, imported: str) -> tuple[str, str] | None:
    """Return the rooms, or modules beside rooms, of one folder that hold the two; None where one holds the other."""
    first, second = importer.split("."), imported.split(".")
    for depth, (name, other) in enumerate(zip(first, second, strict=False), 1):
        if name != other:
            return ".".join(first[:depth]), ".".join(second[:depth])
    return None


@pytest.mark.slow
def test_no_imports_run_in_a_circle():
    """Neither between modules nor between the rooms of a folder, nor between the folders."""
    graph = {name: set(imports(file)) - {name} for name, file in MODULES.items()}
    assert sum(map(len, graph.values())) > 1000, "the graph is that of the whole project"
    rooms = defaultdict(set)
    for pair in (side_by_side(name, imported) for name, imported_names in graph.items() for imported in imported_names):
        if pair is not None:
            rooms[pair[0]].add(pair[1])
    assert "pipesched.cli.options" in rooms["pipesched.cli.output"]
    try:
        TopologicalSorter(graph).prepare()
        TopologicalSorter(rooms).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_happens_in_it_and_what_it_offers(room):
    module = importlib.import_module(room)
    assert module.__doc__, room
    assert len(module.__doc__.splitlines()) == 1, "a room is described in one sentence"
    assert module.__doc__.endswith(".")
    assert sorted(EXPORTS[room]) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    assert set(module.__all__) <= set(dir(module))


def test_a_room_stands_in_the_stub_of_its_folder():
    """So that ``from folder import room`` is the same in all folders, and a new room is seen."""
    inner_rooms = [room for room in ROOMS if room != "pipesched"]
    assert len(inner_rooms) > 30
    assert [room for room in inner_rooms if exports(room.rpartition(".")[0]).get(room.rpartition(".")[2]) != room] == []


@pytest.mark.slow
def test_no_two_public_things_share_a_name():
    """Commands are named after what they do, as is the function of the library behind each."""
    homes = defaultdict(list)
    for name, file in MODULES.items():
        if not name.startswith(f"{COMMAND_LINE}.commands"):
            for public in set(public_names(file)) - {"main"}:
                homes[public].append(name)
    assert {public: names for public, names in homes.items() if len(names) > 1} == {}


def test_no_room_exports_a_name_that_another_of_its_modules_has():
    """Else ``from room import name`` would be the module or the object, whichever was loaded last."""
    for room, names in EXPORTS.items():
        for name, module in names.items():
            assert f"{room}.{name}" not in MODULES or module == f"{room}.{name}", (room, name)


@pytest.mark.slow
def test_a_module_is_imported_through_its_room():
    """Names of another room come from the room, so that it can change inside."""
    for name, file in MODULES.items():
        own_room = name.rsplit(".", 1)[0]
        for node in import_nodes(file):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES and node.module not in ROOMS:
                is_inside = node.module.rsplit(".", 1)[0] == own_room
                assert is_inside or name.startswith(("pipesched.__main__", COMMAND_LINE)), (name, node.module)


LIGHT = """
import pipesched
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.schedules import Schedule, Timeline
from pipesched.profiles.costs import StageCosts
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.io import load_profile, load_stage_costs
from pipesched.profiles.partitioning import balanced_partition
from pipesched.executor import ExecutionError
from pipesched.simulator.search import Setting
from pipesched.simulator.analysis import Comparison, Metrics, compare_timelines
from pipesched.simulator.views import text_gantt, to_trace
import pipesched.simulator.views.staleness_figure
"""


@pytest.mark.slow
def test_value_types_readers_and_charts_for_the_terminal_load_no_engine():
    code = f"{LIGHT}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(run([sys.executable, "-P", "-c", code]).stdout)
    assert Counter(name for name in loaded if name in HEAVY) == {}
    engines = ("pipesched.simulator.engine.", "pipesched.simulator.fast.")
    assert not [name for name in loaded if name.startswith(engines)]


def names_given(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every variable, argument and function of `file`."""
    for node in ast.walk(parsed(file)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                yield node.lineno, name


@pytest.mark.slow
def test_what_holds_a_result_is_called_by_a_noun():
    top = PACKAGE.parent
    code = [*MODULES.values(), *files(top / "benchmarks", top / "docs", top / "tests")]
    code = [file for file in code if GIVEN.search(file.read_text(encoding="utf-8"))]
    assert [f"{file}:{line} {name}" for file in code for line, name in names_given(file) if name in NO_NOUNS] == []
