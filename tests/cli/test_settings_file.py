"""A file of settings: the options of a command as JSON."""

import json

import pytest

from pipesched.cli.options.settings_file import settings_schema
from pipesched.cli.program import COMMANDS, make_program

SWEEP = {"schedule": "1f1b,zbv", "ranks": [4, 8], "microbatches": 8, "uniform": "f=1ms,i=1ms,w=1ms", "no-steady": True}
WORDS = "sweep -s 1f1b,zbv -p 4,8 -m 8 --uniform f=1ms,i=1ms,w=1ms --no-steady"


@pytest.fixture
def write(folder):
    def write(settings):
        (folder / "s.json").write_text(settings if isinstance(settings, str) else json.dumps(settings))

    return write


def test_a_file_says_what_the_command_line_says(pipesched, write):
    write(SWEEP)
    assert pipesched("sweep --settings s.json") == pipesched(WORDS)
    write({"no_steady" if key == "no-steady" else key: value for key, value in SWEEP.items()})
    assert pipesched("sweep --settings=s.json --json").out == pipesched(f"{WORDS} --json").out


def test_the_command_line_wins(pipesched, write):
    write(SWEEP | {"top": 1, "workers": None})
    assert pipesched("sweep --settings s.json -p 2 --top 3") == pipesched(f"{WORDS.replace('4,8', '2')} --top 3")
    write(SWEEP | {"set": ["advance=1"], "schedule": "avgpipe", "no-steady": False})
    expected = pipesched(f"{WORDS.replace('1f1b,zbv', 'avgpipe').removesuffix(' --no-steady')} --set advance=2")
    assert pipesched("sweep --settings s.json --set advance=2") == expected


def test_an_argument_stands_under_its_name(pipesched, write):
    write({"name": "cluster"})
    assert pipesched("schema --settings s.json").out == pipesched("schema cluster").out
    write({"model": "nowhere.json"})
    assert pipesched("tune --settings s.json -b 4 -p 2") == pipesched("tune nowhere.json -b 4 -p 2")


@pytest.mark.parametrize("words", ["digits", "--model digits"])
def test_a_model_of_the_command_line_wins(pipesched, write, folder, words):
    write({"model": "mlp", "schedule": "1f1b", "ranks": 2, "microbatches": 4})
    pipesched(f"run {words} --settings s.json --job job.json")
    assert json.loads((folder / "job.json").read_text())["model"] == "digits"


def test_a_schema_knows_single_words_and_repeated_numbers(pipesched):
    properties = json.loads(pipesched("schema --command train").out)["properties"]
    assert properties["advance"]["enum"] == ["auto"]
    healed = json.loads(pipesched("schema --command what-if").out)["properties"]["heal"]
    assert (healed["type"], healed["items"]) == (["integer", "array"], {"type": "integer"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rank": 4}, "s.json: got 'rank', expected an option of the command, without dashes; did you mean ranks?"),
        ({"settings": "t.json"}, "s.json: got 'settings', expected an option of the command, without dashes"),
        ({"help": True}, "s.json: got 'help', expected an option of the command, without dashes"),
        ({"ranks": []}, "s.json: ranks: got [], expected a text, a number or a list of them"),
        ({"ranks": True}, "s.json: ranks: got True, expected a text, a number or a list of them"),
        ({"json": 1}, "s.json: json: got 1, expected true or false"),
        ([1], 's.json: got no JSON object, expected options and their values; try {"schedule": "1f1b"}'),
        ('{"ranks": 4, "ranks": 8}', "s.json: got the key 'ranks' twice"),
        ("{", "s.json: line 1, column 2: got no JSON"),
    ],
)
def test_a_bad_file_is_one_line(pipesched, write, settings, said):
    write(settings)
    answer = pipesched("simulate --settings s.json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"pipesched: {said}")
    assert answer.err.count("\n") == 1


def test_every_option_of_every_command_is_in_its_schema():
    program = make_program()
    for name in COMMANDS:
        command = program.get_command(None, name)
        properties = settings_schema(command)["properties"]
        options = [option for option in command.params if not option.is_eager]
        names = [next((name for name in option.opts if "--" in name), None) for option in options]
        assert {f"--{key}" for key in properties} >= {*names} - {"--settings", None}, name
        assert all(value["description"] for value in properties.values()), name


def test_a_schema_has_types_limits_and_choices(pipesched):
    properties = json.loads(pipesched("schema --command sweep").out)["properties"]
    assert properties["workers"] | {"description": ""} == {
        "description": "", "type": "integer", "minimum": 1, "maximum": 1024,
    }  # fmt: skip
    assert properties["recompute"]["enum"] == ["no", "yes", "both"]
    assert properties["no-steady"]["type"] == "boolean"
    assert "did you mean sweep?" in pipesched("schema --command sweeep").err
