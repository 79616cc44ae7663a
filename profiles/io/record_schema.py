"""JSON Schema of files; the descriptions come from the docstrings of the classes of their values."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from pipesched.profiles.costs import StageCost
from pipesched.profiles.io.cost_columns import BACKWARDS, COST_COLUMNS, cell_limits
from pipesched.profiles.io.validation import record_adapter
from pipesched.schedules.common import declared
from pipesched.schedules.formats import attribute_docs, first_sentence

_HEAD = {
    "format": "Format of the file.",
    "version": "Version of the format.",
    "kind": "Kind of the record.",
}
_COLUMNS = {
    "stage": "Number of the stage, from 0; rows may stand in any order.",
    "layer": "Name of the layer, or its number; rows stand in the order of the layers.",
    "overlap": "Share of the shorter op of an Overlap that hides behind the longer, 0 to 1; the same in every row.",
}


class _Described(GenerateJsonSchema):
    """Schemas with descriptions from docstrings; a record has the docstring of the class that it `becomes`."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        return _described(super().dataclass_schema(schema), schema["cls"])

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(name).strip("_").removesuffix("Record")


def record_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of the files that `parse_record` reads as `kind`, without conditions between fields."""
    return record_adapter(kind).json_schema(schema_generator=_Described)


def cost_table_schema(rows: str) -> dict[str, Any]:
    """Return the JSON Schema of a table of costs: a list of rows, in seconds, with null for an empty cell.

    Args:
        rows: Kind of the rows: ``stage`` or ``layer``.
    """
    docs = attribute_docs(StageCost) | _COLUMNS
    names = [rows, *COST_COLUMNS, *(["utilisation"] if rows == "stage" else [])]
    columns = {name: {**cell_limits(name), "description": docs[name]} for name in names}
    whole, *halves = BACKWARDS
    row = {
        "type": "object",
        "properties": columns,
        "required": ["forward_s", *(["stage"] if rows == "stage" else [])],
        "anyOf": [_filled(whole), _filled(*halves)],
        "dependentRequired": {halves[0]: [halves[1]], halves[1]: [halves[0]]},
        "additionalProperties": False,
    }
    return {"type": "array", "items": row, "minItems": 1}


def _filled(*columns: str) -> dict[str, Any]:
    return {"required": list(columns), "properties": {name: {"type": "number"} for name in columns}}


def _described(schema: JsonSchemaValue, kind: type) -> JsonSchemaValue:
    value = getattr(kind, "becomes", None) or kind
    docs = _HEAD | attribute_docs(value) | attribute_docs(kind)
    settings = declared(value) if is_dataclass(value) else {}
    schema |= {"title": value.__name__.strip("_"), "description": first_sentence(value), "additionalProperties": False}
    for name, field in schema["properties"].items():
        field.pop("title", None)
        if "patternProperties" in field:
            field["additionalProperties"] = False
        if name in docs:
            field["description"] = docs[name]
        elif name in settings:
            field["description"] = settings[name].description.text
    tags = [name for name, field in schema["properties"].items() if "const" in field]
    if tags:  # they distinguish the alternatives of a union, so they are required
        schema["required"] = list(dict.fromkeys((*tags, *schema.get("required", ()))))
    return schema
