"""A page for a browser in one HTML file: its data, and the parts that show it, each a section and its scripts."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of a page: the files beside this one that it is made of, and its data.

    Attributes:
        section: The elements (HTML).
        scripts: Scripts that fill them.
        data: Plain data for the scripts, by names that no other part has.
        folded: Elements below all sections that a click unfolds (HTML); empty: none.
        has_pictures: Whether the data has pictures.
    """

    section: str
    scripts: tuple[str, ...]
    data: Mapping[str, Any]
    folded: str = ""
    has_pictures: bool = False


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """The figures with which a page opens: a few measures, each with a value per run.

    Attributes:
        rows: A name and its values, as people read them.
        names: The name of each run; a single one is not shown.
    """

    rows: Sequence[Sequence[str]]
    names: Sequence[str] = ("",)


def html_page(title: str, figures: KeyFigures, parts: Sequence[PagePart], notes: str) -> str:
    """Return the page, which loads no other file, uses no network and runs no script but its own.

    Args:
        title: The heading of the page.
        figures: Large figures below the heading.
        parts: One below another.
        notes: Lines at the end of the page, folded.
    """
    scripts = [_text(name) for name in ("page.js", *(name for part in parts for name in part.scripts))]
    style = _text("page.css")
    policy = [f"script-src {' '.join(map(_hash, scripts))}", f"style-src {_hash(style)}"]
    if any(part.has_pictures for part in parts):
        policy.append("img-src data:")
    data = {key: value for part in parts for key, value in part.data.items()}
    data |= {"title": title, "notes": notes, "figures": {"names": [*figures.names], "rows": [*map(list, figures.rows)]}}
    places = {
        "title": escape(title),
        "style": style,
        "policy": "; ".join(policy),
        "sections": "".join(_text(part.section) for part in parts),
        "folded": "".join(_text(part.folded) for part in parts if part.folded),
        "data": _json(data),
        "scripts": "".join(f"<script>{script}</script>\n" for script in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: places[place[1]], _text("page.html"))


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the source expression that lets a browser take this style or script, and no other."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _json(data: object) -> str:
    """Return `data` as ASCII JSON that cannot end its HTML element: ``<``, ``>`` and ``&`` are escaped."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda char: f"\\u{ord(char[0]):04x}", text)
