"""The pages of the site that are made while it is built: the command line, the library, and notebooks."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, get_args, get_type_hints

from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

import pipesched
from pipesched.cli.program import COMMANDS, make_program

_ESCAPED, _BACKSLASHED = re.compile(r"([<*|])"), r"\\\1"
"""What markdown would read as its own in the help of an option."""
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_DRAWING = re.compile(r"^( *)(.*\S):\n\n(?=\1 +\S)", re.MULTILINE)
"""The end of a paragraph before lines that are indented further: a drawing, code, or a formula."""


def have_one_title(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Lower all headings below the first of a page that has several titles, as results of several runs do."""
    parts = _FENCED.split(source[0])
    if sum(part.count("\n# ") for part in parts[::2]):
        title, first = parts[0].split("\n", 1)
        parts[0] = first
        parts[::2] = [re.sub("^#", "##", part, flags=re.MULTILINE) for part in parts[::2]]
        source[0] = "".join([title, "\n", *parts])


def add_generated(_: Sphinx, page: str, source: list[str]) -> None:
    """Add to the pages that say so what is made of the project as it is; Sphinx calls it for every page."""
    make = _GENERATED.get(page)
    if make is not None:
        source[0] += "\n" + "\n".join(make())


def keep_drawings(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Make what a docstring indents below a colon stand as it is; Sphinx calls it before it reads a docstring."""
    lines[:] = _DRAWING.sub(r"\1\2::\n\n", "\n".join(lines)).split("\n")


def command_lines() -> Iterator[str]:
    """Yield a section for every command, which says what its help page does."""
    program: Any = make_program()
    for name, command in ((name, program.get_command(None, name)) for name in COMMANDS):
        context = command.make_context(f"pipesched {name}", [], resilient_parsing=True)
        page = _HelpPage()
        command.format_help_text(context, page)
        command.format_options(context, page)
        usage = command.get_usage(context).removeprefix("Usage: ").strip()
        yield f"## pipesched {name}\n\n```text\n{usage}\n```\n\n{''.join(page.parts)}"


class _HelpPage:
    """What a command writes its help to, as markdown: its text, examples as code, and a table for a group of options.

    Attributes:
        parts: The page so far.
        title: Heads the next table.
        current_indent: None: the page is indented by itself.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.title = ""
        self.current_indent = 0

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        self.title = title
        yield

    indentation = nullcontext

    def write_paragraph(self) -> None:
        self.parts.append("\n")

    def write_text(self, text: str) -> None:
        self.parts.append(f"{_ESCAPED.sub(_BACKSLASHED, text)}\n\n")

    def write(self, line: str) -> None:
        if self.parts[-1:] == ["```\n"]:
            self.parts.pop()
        else:
            self.parts.append("\n```bash\n")
        self.parts += [line, "```\n"]

    def write_dl(self, rows: Iterable[tuple[str, str]], **_: int) -> None:
        self.parts.append(f"\n| {self.title} | |\n|---|---|\n")
        for option, text in rows:
            name = option.strip().replace("|", r"\|")
            self.parts.append(f"| `{name}` | {_ESCAPED.sub(_BACKSLASHED, text)} |\n")
        self.parts.append("\n")


def library_lines() -> Iterator[str]:
    """Yield a section for each kind of public name, with what its docstring says."""
    names = {name: getattr(pipesched, name) for name in sorted(pipesched.__all__, key=str.lower)}
    for title, directive, belongs in _KINDS:
        yield f"## {title}\n\n```{{eval-rst}}"
        for name, value in names.items():
            if belongs(value):
                yield f".. {directive}:: pipesched.{name}\n"
        yield "```\n"
    parts = sorted(_parts_of(names.values()), key=lambda part: part.__name__.lower())
    for title, belongs in (("Results", _is_result), ("What these consist of", lambda part: not _is_result(part))):
        yield f"## {title}\n\n```{{eval-rst}}"
        for part in filter(belongs, parts):
            yield f".. autoclass:: {part.__module__}.{part.__name__}\n"
        yield "```\n"


def _parts_of(values: Collection[Any]) -> set[type]:
    """Return the classes of ours that the annotations of `values` name, and theirs, which are not among them."""
    waiting = [value for value in values if inspect.isclass(value) or inspect.isfunction(value)]
    known, parts = set(waiting), set[type]()
    while waiting:
        value = waiting.pop()
        members = [value, *vars(value).values()] if inspect.isclass(value) else [value]
        members = [getattr(member, "__func__", member) for member in members]  # of a class or static method
        members = [getattr(member, "fget", None) or getattr(member, "func", member) for member in members]
        for member in members:
            if inspect.isclass(member) or inspect.isfunction(member):
                with suppress(NameError):  # a type of another project, which is loaded for types alone
                    new = set(_classes_in(*get_type_hints(member).values())) - parts - known
                    parts |= new
                    waiting += new
    return parts


def _classes_in(*hints: Any) -> Iterator[type]:
    """Yield the classes of ours that type hints are made of."""
    for hint in hints:
        if inspect.isclass(hint) and hint.__module__.startswith("pipesched.") and not hint.__name__.startswith("_"):
            yield hint
        yield from _classes_in(*get_args(hint))


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def _is_result(value: Any) -> bool:
    return inspect.isclass(value) and not _is_error(value) and value.__module__.startswith("pipesched.workflows")


def _is_value(value: Any) -> bool:
    return inspect.isclass(value) and not _is_error(value)


_KINDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("Functions", "autofunction", inspect.isfunction),
    ("Values", "autoclass", _is_value),
    ("Errors", "autoexception", _is_error),
)
_GENERATED = {"docs/command_line": command_lines, "docs/api": library_lines}


class NotebookParser(MystParser):  # type: ignore[misc]  # it has no types
    """Reads a notebook as the page that it shows: its words, its code, and what came out when it ran."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Parse the notebook's markdown."""
        super().parse("\n\n".join(cells_of(json.loads(inputstring))), document)


def cells_of(notebook: dict[str, Any]) -> Iterator[str]:
    """Yield the markdown of every cell of a notebook, and of what it showed."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
        else:
            yield f"```python\n{source}\n```"
            yield from (_shown(output) for output in cell["outputs"])


def _shown(output: dict[str, Any]) -> str:
    """Return what a cell showed: the first of a sentence, a picture, a table and a text that there is."""
    data = output.get("data", {})
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    if "image/png" in data:
        return "![](data:image/png;base64,{})".format("".join(data["image/png"]).replace("\n", ""))
    if "text/html" in data:
        return "".join(data["text/html"]).replace("\n\n", "\n")
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"
