"""Fill the tables of fields in docs/files.md: ``make generated``, or ``python docs/make_files.py``.

All else of the page is written by hand; a table stands between the two comments that name its format.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent)]

from pipesched.workflows.file_formats import file_schema

PAGE = DOCS / "files.md"
_TABLE = re.compile(r"<!-- fields of ([a-z-]+) -->\n.*?<!-- end -->", re.DOTALL)
_KINDS = {"integer": "whole number", "string": "text", "array": "list", "null": "null", "boolean": "true or false"}


def page(text: str) -> str:
    """Return the page with its tables as the formats are now."""
    return _TABLE.sub(lambda match: _filled(match[1]), text)


def _filled(name: Any) -> str:
    tables = "\n".join(_tables(file_schema(name)))
    return f"<!-- fields of {name} -->\n{tables}\n<!-- end -->"


def _tables(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of a file as a table, then those of each record in it."""
    records = schema.get("$defs", {})
    for top in [schema["items"]] if schema.get("type") == "array" else schema.get("anyOf", [schema]):
        yield _table(top, records)
    for name, record in records.items():
        if "properties" in record:
            yield f"*{name}*: {record['description']}\n{_table(record, records)}"


def _table(record: Mapping[str, Any], records: Mapping[str, Any]) -> str:
    lines = ["", "| field | is | means |", "|---|---|---|"]
    for name, field in record["properties"].items():
        kind, means = _kind(field, records), field["description"]
        if name not in record.get("required", ()):
            means = means if "null" in kind else re.sub(r"(or )?\bnull\b", "left out", means)
            kind += "; or left out"
        lines.append(f"| `{name}` | {kind} | {means} |")
    return "\n".join([*lines, ""])


def _kind(field: Mapping[str, Any], records: Mapping[str, Any]) -> str:
    """Return what a field may be, in words."""
    if "anyOf" in field or "oneOf" in field:
        parts = field.get("anyOf") or field["oneOf"]
        return " or ".join(dict.fromkeys(_kind(part, records) for part in parts))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"*{name}*" if "properties" in records[name] else _kind(records[name], records)
    if "enum" in field or "const" in field:
        return " or ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return " or ".join(_of_type(kind, field, records) for kind in kinds)


def _of_type(kind: str, field: Mapping[str, Any], records: Mapping[str, Any]) -> str:
    inner = field.get("additionalProperties")
    if kind == "array" and "prefixItems" in field:
        return f"[{', '.join(_kind(part, records) for part in field['prefixItems'])}]"
    if kind == "array":
        return f"list of {_kind(field['items'], records)}"
    return f"object of {_kind(inner, records)}" if isinstance(inner, dict) else _KINDS.get(kind, kind)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
