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
        scripts: What fills them.
        data: Plain data for the scripts, by names that no other part has.
        has_pictures: Whether the data has pictures.
    """

    section: str
    scripts: tuple[str, ...]
    data: Mapping[str, Any]
    has_pictures: bool = False


def html_page(title: str, caption: str, parts: Sequence[PagePart]) -> str:
    """Return the page, which asks for nothing else: no other file, no network, and no script but its own.

    Args:
        title: Above all.
        caption: Below the title.
        parts: One below another.
    """
    scripts = [_text(name) for name in ("page.js", *(name for part in parts for name in part.scripts))]
    style = _text("page.css")
    policy = [f"script-src {' '.join(map(_hash, scripts))}", f"style-src {_hash(style)}"]
    if any(part.has_pictures for part in parts):
        policy.append("img-src data:")
    data = {key: value for part in parts for key, value in part.data.items()} | {"title": title, "caption": caption}
    places = {
        "title": escape(title),
        "style": style,
        "policy": "; ".join(policy),
        "sections": "".join(_text(part.section) for part in parts),
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
    """Return `data` so that nothing in it ends its element: ASCII, and of that no ``<``, ``>`` or ``&``."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda char: f"\\u{ord(char[0]):04x}", text)
