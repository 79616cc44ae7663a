"""``pipesched schema``: the formats of our files, as JSON Schema."""

from __future__ import annotations

import json as standard_json
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.option_groups import Json, grouped, out_option
from pipesched.cli.options.settings_file import settings_schema
from pipesched.cli.output.output_files import JSON, check_outputs, emit
from pipesched.cli.terminal import print_json, print_table
from pipesched.workflows import Table, file_formats
from pipesched.workflows.file_formats import FormatName


@grouped
def schema(
    context: typer.Context,
    name: Annotated[FormatName | None, typer.Argument(help="File format (default: list all).")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Write all schemas, as NAME.schema.json in the folder --out.")
    ] = False,
    command: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Command whose file of --settings is described, in place of NAME."),
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the schema: .json; with --all, an existing folder")] = None,
) -> None:
    """Print the JSON Schema of a file format, with the meaning and unit of every field, or list the formats.

    docs/files.md describes the files, with an example of each.
    """
    if command is not None:
        if name is not None or every:
            raise InputError("--command: got NAME or --all too, expected only one of them; leave one out")
        check_outputs((out, JSON))
        emit(_text(settings_schema(_command(context.parent, command))), out)
    elif every:
        if name is not None or out is None or not out.is_dir():
            got = f"{name} too" if name is not None else "no --out" if out is None else f"--out {out}"
            raise InputError(f"--all: got {got}, expected --out with a folder; try 'pipesched schema --all --out .'")
        paths = {format_name: out / f"{format_name}.schema.json" for format_name in file_formats.FILE_FORMATS}
        check_outputs(*((path, JSON) for path in paths.values()))
        for format_name, path in paths.items():
            emit(_text(file_formats.file_schema(format_name)), path)
    elif name is not None:
        check_outputs((out, JSON))
        emit(_text(file_formats.file_schema(name)), out)
    elif out is not None:
        raise InputError(
            "--out: got this option without NAME, expected both; try 'pipesched schema plan --out plan.json'"
        )
    elif json:
        files = {key: {"suffix": form.suffix, "text": form.text} for key, form in file_formats.FILE_FORMATS.items()}
        print_json("schema", {"files": files})
    else:
        rows = (
            {"name": key, "file": form.suffix, "what": form.text} for key, form in file_formats.FILE_FORMATS.items()
        )
        print_table(Table("Files", tuple(rows), "'pipesched schema profile' prints the form of one"))


def _command(program: Any, name: str) -> Any:
    """Return a command of the program, which is the context of the present one."""
    command = program.command.get_command(program, name)
    if command is None:
        near = get_close_matches(name, program.command.list_commands(program), n=1)
        advice = f"did you mean {near[0]}?" if near else "see 'pipesched --help'"
        raise InputError(f"--command: got {name!r}, expected a command of pipesched; {advice}")
    return command


def _text(schema: object) -> str:
    return standard_json.dumps(schema, indent=2) + "\n"
