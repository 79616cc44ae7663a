"""The size of the house: lines, files, long functions, public names, settings, and words to read twice.

python benchmarks/house.py [--out benchmarks/results/house.md]
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from report import arguments_of, show

import pipesched
from pipesched import schedules

ROOT = Path(__file__).parents[1]
SOURCE = ("simulator", "executor", "schedules", "profiles", "pipesched")
LOOPS = {"simulator/fast/event_loop.py", "simulator/fast/run_ahead.py"}
"""Files of the event loops, whose functions may be long."""
DESCRIBED = re.compile(r"\b(Description|typer\.Option)\(")
"""The annotation of a setting that has a sentence for people."""
WORDS = re.compile(
    r"\b(what|those|that of|who|so many|as many as|is none|are none|let go|lets go|goes on|told)\b", re.IGNORECASE
)


def files(*patterns: str) -> list[Path]:
    """Return the tracked files, without links to other folders."""
    text = subprocess.run(
        [shutil.which("git") or "git", "-C", str(ROOT), "ls-files", "--", *patterns],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for line in text.splitlines() if not (path := ROOT / line).is_symlink() and path.is_file()]


def num_lines(paths: Sequence[Path]) -> int:
    """Return the lines of some files together."""
    return sum(path.read_text().count("\n") for path in paths)


def functions(paths: Sequence[Path]) -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each function with its file."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the parameters of a function, but for ``self``."""
    every = function.args
    names = [argument.arg for argument in (*every.posonlyargs, *every.args, *every.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def described_settings(paths: Sequence[Path]) -> Counter[str]:
    """Return the number of sentences on each setting: fields and parameters with a `Description` or `typer.Option`."""
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())))
    named: Counter[str] = Counter()
    for node in nodes:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) | ast.arg(arg=name, annotation=kind):
                named[name] += kind is not None and bool(DESCRIBED.search(ast.unparse(kind)))
    return +named


def num_forwards(paths: Sequence[Path]) -> int:
    """Return the number of arguments that pass a name on as it is: ``x=x``."""
    calls = (node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    passed = ((keyword.arg, keyword.value) for call in calls for keyword in call.keywords)
    return sum(isinstance(value, ast.Name) and value.id == name for name, value in passed)


def docstring_lines(paths: Sequence[Path]) -> list[str]:
    """Return the lines of all docstrings."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))
    return [line for node in nodes for line in (ast.get_docstring(node) or "").splitlines()]


def prose_of_folders() -> dict[str, list[str]]:
    """Return the lines of docstrings by folder of the source, and the lines of the pages as ``docs``."""
    prose = {folder: docstring_lines(files(f"{folder}/*.py")) for folder in SOURCE}
    pages = [path for path in files("*.md") if "CHANGELOG" not in path.name]
    return prose | {"docs": [line for path in pages for line in path.read_text().splitlines()]}


def num_words(lines: Sequence[str]) -> int:
    """Return the number of words that make a sentence be read twice."""
    return sum(len(WORDS.findall(line)) for line in lines)


def report() -> Iterator[str]:
    """Yield the page."""
    source, tests = files(*(f"{folder}/*.py" for folder in SOURCE)), files("tests/*.py")
    every = [(num_parameters(node), node.name, path) for path, node in functions(source)]
    usual = [
        ((node.end_lineno or 0) - node.lineno + 1, node.name, path)
        for path, node in functions(source)
        if str(path.relative_to(ROOT)) not in LOOPS
    ]
    said = described_settings(source)
    prose = [line for lines in prose_of_folders().values() for line in lines]
    yield "# The size of the house"
    yield ""
    yield "`python benchmarks/house.py`"
    yield ""
    yield "| measure | number |"
    yield "|---|---|"
    yield f"| source lines, files | {num_lines(source):,}, {len(source)} |"
    yield f"| test lines, files | {num_lines(tests):,}, {len(tests)} |"
    for what, rows in (("longest parameter list", every), ("longest function outside the event loops", usual)):
        number, name, path = max(rows, key=lambda row: row[0])
        yield f"| {what} | {number} (`{name}` in {path.relative_to(ROOT)}) |"
    yield f"| functions above 10 parameters, above 60 lines | {_above(every, 10)}, {_above(usual, 60)} |"
    yield f"| public names of `pipesched`, `pipesched.schedules` | {len(dir(pipesched))}, {len(dir(schedules))} |"
    texts = [text for path in source if "assert_never(op)" in (text := path.read_text())]
    readers = sum(not re.search(r"case [^:]*(Stage|Weights)Op\(", text) for text in texts)
    yield f"| files with a case for every kind of op, for every word of `WeightsOp` | {len(texts)}, {readers} |"
    of_size = said["microbatch_size"]
    yield f"| settings, sentences on them, sentences on `microbatch_size` | {len(said)}, {said.total()}, {of_size} |"
    forwards = (num_forwards(files(f"pipesched/{room}/*.py")) for room in ("workflows", "cli"))
    yield f"| arguments `x=x` in `workflows`, `cli` | {', '.join(map(str, forwards))} |"
    yield f"| words to read twice, per 100 lines of docstrings and docs | {100 * num_words(prose) / len(prose):.1f} |"


def _above(rows: Sequence[tuple[int, str, Path]], limit: int) -> int:
    return sum(number > limit for number, _, _ in rows)


if __name__ == "__main__":
    show(report(), arguments_of(__doc__).parse_args().out)
