"""What a command says with ``--json``."""

import json


def data(pipesched, line):
    """Return what `line` says as data; it must end well and say nothing else."""
    answer = pipesched(f"{line} --json")
    assert (answer.code, answer.err) == (0, "")
    return json.loads(answer.out)
