"""Run the examples of pages, or write what they show anew: ``python docs/examples.py docs/tutorial.md``.

What a fenced block is, its first line says:

* ```` ```csv mine.csv ````: a file of that name, in any language.
* ```` ```console ````: commands after ``$``, each with what it prints; ``# exit code 1`` behind one expects that.
* ```` ```python ````: code, with the names of the page's earlier blocks; a block of ``text`` right below is what it
  prints.

All other blocks are left alone. A line ``...`` stands for whatever is printed there. A page runs from top to bottom
in a folder of its own, with the repository's profiles and notebooks.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from pipesched.cli.main import main as pipesched_main

COLUMNS, LEFT_OUT = 80, "..."
PATIENTLY = ["--time-limit", "600"]
"""Options of a search: on a busy machine, too, it ends where it is complete."""
_FENCE = re.compile(r"^```(?P<language>\w+)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (?P<line>(?:.*\\\n)*.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)
_EXIT_CODE = re.compile(r"# exit code (\d+)$")


@dataclass(frozen=True, slots=True)
class Example:
    """What a page says that is printed, and what was.

    Attributes:
        code: The command, or the code.
        start: Where in the page what is printed begins.
        end: Where it ends.
        shown: What the page says.
        printed: What was printed.
    """

    code: str
    start: int
    end: int
    shown: str
    printed: str

    @property
    def is_true(self) -> bool:
        """Whether the page shows what was printed."""
        lines = ("(.*\n)*?" if line == LEFT_OUT else re.escape(f"{line}\n") for line in self.shown.splitlines())
        return re.fullmatch("".join(lines), self.printed) is not None

    @property
    def is_partly_shown(self) -> bool:
        """Whether the page leaves something out."""
        return LEFT_OUT in self.shown.splitlines()


def run_page(page: str, folder: Path) -> Iterator[Example]:
    """Run the examples of a page in a folder, from top to bottom, and yield what came out.

    Raises:
        RuntimeError: A command ended with another exit code than the page says.
    """
    for name in ("notebooks", "profiles"):
        (folder / name).symlink_to(ROOT / name)
    blocks = list(_FENCE.finditer(page))
    names: dict[str, Any] = {"__name__": "__main__"}
    with chdir(folder), _as_a_terminal():
        for block, below in zip(blocks, [*blocks[1:], None], strict=True):
            if block["name"]:
                Path(block["name"]).write_text(block["text"], encoding="utf-8")
            elif block["language"] == "console":
                for command in _COMMAND.finditer(block["text"]):
                    start, end = (block.start("text") + place for place in command.span("shown"))
                    yield Example(command["line"], start, end, command["shown"], _output_of(command["line"]))
            elif block["language"] == "python":
                printed = StringIO()
                with redirect_stdout(printed):
                    exec(compile(block["text"], "example", "exec"), names)  # noqa: S102 -- our own pages
                if below is not None and below["language"] == "text" and not page[block.end() : below.start()].strip():
                    yield Example(block["text"], *below.span("text"), below["text"], _trimmed(printed.getvalue()))


@contextmanager
def _as_a_terminal() -> Iterator[None]:
    """Keep what commands and code change of this process, modules of the folder included, to the page."""
    before, modules = signal.getsignal(signal.SIGTERM), set(sys.modules)
    with patch.dict(os.environ, COLUMNS=str(COLUMNS)), patch.object(sys, "path", ["", *sys.path]):
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            for name in set(sys.modules) - modules:
                if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == Path.cwd():
                    del sys.modules[name]


def _output_of(line: str) -> str:
    """Return what a command prints: the command line in this process, anything else in a shell."""
    expected = _EXIT_CODE.search(line)
    words = line.replace("\\\n", " ")
    printed, complaints = StringIO(), StringIO()
    if words.startswith("pipesched "):
        arguments = shlex.split(words, comments=True)
        arguments += PATIENTLY if arguments[1] == "plan" else []
        with redirect_stdout(printed), redirect_stderr(complaints):
            try:
                with patch.object(sys, "argv", arguments):
                    pipesched_main()
            except SystemExit as done:
                code = done.code
    else:
        done_in_shell = subprocess.run(words, shell=True, capture_output=True, text=True, check=False)  # noqa: S602
        code = done_in_shell.returncode
        printed.write(done_in_shell.stdout)
        complaints.write(done_in_shell.stderr)
    if code != (int(expected[1]) if expected else 0):
        raise RuntimeError(f"{line}: got exit code {code}: {complaints.getvalue()}")
    return _trimmed(printed.getvalue() + (complaints.getvalue() if code else ""))


def _trimmed(text: str) -> str:
    """Return `text` without white space at the end of its lines, and without empty lines at its end."""
    return "".join(f"{row.rstrip()}\n" for row in text.rstrip().splitlines())


def rewritten(page: str, examples: list[Example]) -> str:
    """Return a page that shows what was printed, but for where it leaves something out."""
    for example in reversed(examples):
        if not (example.is_true or example.is_partly_shown):
            page = page[: example.start] + example.printed + page[example.end :]
    return page


def main() -> None:
    """Write the pages anew that are named, and say what has to be done by hand."""
    for path in map(Path, sys.argv[1:]):
        page = path.read_text(encoding="utf-8")
        with TemporaryDirectory() as folder:
            examples = list(run_page(page, Path(folder)))
        path.write_text(rewritten(page, examples), encoding="utf-8")
        for example in examples:
            if not example.is_true:
                print(f"{path}: {example.code}\n{example.printed if example.is_partly_shown else 'written anew'}")


if __name__ == "__main__":
    main()
