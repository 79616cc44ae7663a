"""Messages name the file that they are about, and are short whatever they quote."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipesched.profiles.clusters import Device, Link, flat
from pipesched.profiles.io import save_json
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json

GRAPH = Path(__file__).parents[2] / "profiles" / "data" / "pipedream" / "gnmt.graph.txt"


def test_a_schedule_file_that_cannot_be_lowered_is_named(pipesched, folder):
    good = build("gpipe", 2, 2)
    (folder / "mine.json").write_text(to_json(replace(good, lists=(good.ops[0], good.ops[1][::-1]))))
    answer = pipesched("simulate -f mine.json --uniform f=1,b=2")
    assert answer.code == 1
    assert answer.err.startswith("pipesched: mine.json: gpipe: rank 1 op 0: ")


def test_machines_with_nodes_of_unequal_size_are_named_with_their_file(pipesched, folder):
    cluster = replace(flat(3, Link(1e-5, 1e9)), inter=Link(1e-4))
    save_json(replace(cluster, devices=(Device(), Device(), Device(node=1))), folder / "machines.json")
    answer = pipesched(f"partition {GRAPH} -p 3 --cluster machines.json")
    assert answer.code == 2
    assert answer.err.startswith("pipesched: machines.json: cluster: got nodes of 2, 1 devices, expected")


@pytest.mark.parametrize(
    "line",
    [
        "simulate -s {word} -p 2 -m 4 --uniform f=1,b=2",
        "simulate -s 1f1b -p {word} -m 4 --uniform f=1,b=2",
        "simulate -s 1f1b -p 2 -m 4 --uniform {word}",
        "simulate -s 1f1b -p 2 -m 4 --uniform f=1,b=2 --placement {word}",
        "simulate -f {word} --uniform f=1,b=2",
        "simulate --{word}",
        "run -s 1f1b -p 2 -m 4 --uniform f=1,b=2 --timeout {word}",
        "train {word}",
        "{word}",
    ],
)
def test_a_value_of_5000_characters_is_shown_shortened(pipesched, line):
    for value in ("x" * 5000, "'0, " + "0, " * 1666 + "'"):
        answer = pipesched(line.replace("{word}", value))
        assert answer.code == 2
        assert answer.err.count("\n") == 1
        assert len(answer.err) < 1000
