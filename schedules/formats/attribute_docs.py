"""The descriptions of a class's attributes, from its docstring or from the annotation of a type."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent
from typing import get_type_hints

_SECTION = re.compile(r"^Attributes:\n((?:[ ]{4}.*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): (.*(?:\n {4}.*)*)", re.MULTILINE)


def attribute_docs(kind: type) -> dict[str, str]:
    """Return the description of each attribute of a class, including inherited ones, in one line."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = _SECTION.search(inspect.cleandoc(base.__doc__ or "") + "\n")
        if section is not None:
            docs |= {name: _one_line(text) for name, text in _ENTRY.findall(dedent(section[1]))}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        sentences = [said for said in getattr(hint, "__metadata__", ()) if isinstance(said, str)]
        docs |= {name: sentences[0]} if sentences else {}
    return docs


def first_sentence(kind: type) -> str:
    """Return the first paragraph of a class's docstring, in one line."""
    return _one_line(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0])


def _one_line(text: str) -> str:
    """Return `text` as a description of a field of a file: in one line, with null for None."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split()).replace("``", "`"))
