"""``pipesched schema``: the formats of our files, as JSON Schema."""

from __future__ import annotations

import json as standard_json
from pathlib import Path
from typing import Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.output.output_files import JSON, check_outputs, emit
from pipesched.cli.terminal import print_json, print_table
from pipesched.workflows import FormatName


@grouped
def schema(
    name: Annotated[FormatName | None, typer.Argument(help="File format (default: list all).")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Write all schemas, as NAME.schema.json in the folder --out.")
    ] = False,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the schema: .json; with --all, an existing folder.")] = None,
) -> None:
    """Print the JSON Schema of a file format, with the meaning and unit of every field, or list the formats.

    docs/files.md describes the files, with an example of each.
    """
    from pipesched.workflows.file_formats import FILE_FORMATS, file_schema

    if every:
        if name is not None or out is None or not out.is_dir():
            got = f"{name} too" if name is not None else "no --out" if out is None else f"--out {out}"
            raise InputError(f"--all: got {got}, expected --out with a folder; try 'pipesched schema --all --out .'")
        paths = {format_name: out / f"{format_name}.schema.json" for format_name in FILE_FORMATS}
        check_outputs(*((path, JSON) for path in paths.values()))
        for format_name, path in paths.items():
            emit(_text(file_schema(format_name)), path)
    elif name is not None:
        check_outputs((out, JSON))
        emit(_text(file_schema(name)), out)
    elif out is not None:
        raise InputError("--out: got it without NAME, expected both; try 'pipesched schema plan --out plan.json'")
    elif json:
        files = {key: {"suffix": form.suffix, "text": form.text} for key, form in FILE_FORMATS.items()}
        print_json("schema", {"files": files})
    else:
        rows = [{"name": key, "file": form.suffix, "what": form.text} for key, form in FILE_FORMATS.items()]
        print_table("Files", rows, "'pipesched schema profile' prints the form of one")


def _text(schema: object) -> str:
    return standard_json.dumps(schema, indent=2) + "\n"
