"""Values that options read by themselves are those that typer's validators read, and what these refuse is refused."""

import subprocess
import sys

import pytest
import typer
from typer import BadParameter

from pipesched.cli.program import COMMANDS, make_program

WORDS = (
    "", " 1", "1", "-1", "+1", "007", "1_000", "1.0", "0.5", ".5", "5.", "1e3", "1e999", "-0.0", "nan", "inf", "True",
    "x", "é", "\udce9", "9" * 30, "missing/file", ".", "-", "fast", "FAST", "sgd", "rendezvous", "float16",
)  # fmt: skip
VALUES = (None, *WORDS, 0, 1, 10**18, 0.0, 0.5, True, (), ("1",), ["x", "1"], [""])


def program():
    return make_program()


@pytest.mark.parametrize("name", COMMANDS)
def test_values_are_read_as_typer_reads_them(name):
    command = make_program().get_command(None, name)
    context = typer.Context(command)
    for parameter in command.get_params(context):
        defaults = () if parameter.default is None else (parameter.default,)
        for value in (*VALUES, *defaults):
            readers = parameter.get_runtime_param(), type(parameter).get_runtime_param(parameter)
            read, read_by_typer = (_read(reader, value, parameter, context) for reader in readers)
            assert (repr(read), type(read)) == (repr(read_by_typer), type(read_by_typer)), (parameter.name, value)


def _read(reader, value, parameter, context):
    try:
        return reader.coerce(value, param=parameter, ctx=context)
    except BadParameter as error:
        return error.format_message()


def test_a_file_that_is_there_but_cannot_be_read_is_refused(pipesched, folder, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: mode == 0)
    answer = pipesched("simulate -f mine.csv --uniform f=1,b=2")
    assert (answer.code, "mine.csv' is not readable" in answer.err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "simulate -s 1f1b -p 4 -m 8 --uniform f=1,b=2 --link latency_s=0.1",
        "--version",
        "train --help",
    ],
)
def test_a_prediction_a_list_and_help_load_no_validators_no_simpy_and_no_machine_code(line):
    heavy = {"pydantic", "pydantic_core", "simpy", "pandas", "numba", "scipy", "torch", "matplotlib"}
    heavy |= set() if line == "--version" else {"importlib.metadata"}
    assert heavy & modules_of(line) == set()


@pytest.mark.slow
def test_the_version_loads_no_command():
    assert [name for name in modules_of("--version") if name.startswith("pipesched.cli.commands.")] == []


def modules_of(line):
    """Return the modules that a command loads."""
    code = "import sys; from pipesched.cli.main import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-P", "-c", code, *line.split()], capture_output=True, text=True, check=True)
    return {*done.stderr.split()}
