"""Bad input is one line on stderr, exit code 2 (4 when something is not there), and nothing is written."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copy

import pytest
import typer

from pipesched.cli.errors import forget_files, in_flags
from pipesched.cli.program import COMMANDS, complaint, make_program
from pipesched.profiles.io import Plan, Predicted, save_json
from pipesched.schedules.builders import build
from pipesched.schedules.formats import timeline_to_json
from pipesched.schedules.transforms import ScheduleSpec
from tests.hand_timelines import play
from tests.profiles.hand_profiles import layer, measurement, profile
from tests.profiles.traces.kineto_files import BASE_NS, KinetoFile, two_ranks

DATA = Path(__file__).parents[2] / "profiles" / "data"
FREE = '{"latency_s": 0, "bandwidth_bytes_per_s": null}'
CLUSTER = f'{{"format": "pipesched-cluster", "version": 1, "devices": [{{}}], "intra": {FREE}}}'
NODE = "node%d -- Linear -- forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size=8\n"
GPU = {"memory_bytes": 10**9, "flops_per_s": {"bfloat16": 1e12}, "memory_bandwidth_bytes_per_s": 1e9,
       "link_bandwidth_bytes_per_s": 1e9, "efficiency": 0.5}  # fmt: skip
"""A GPU without a curve of its kernels."""
SIMULATE = "simulate -s 1f1b -p 2 -m 4"
COSTS = "--uniform f=1,b=2"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Write profiles, graphs and plans that go with few options, batches and models, or with none."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("conv-epyc.json", "pipedream/gnmt.graph.txt"):
        copy(DATA / name, folder)
    spec = ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=2)
    plan = Plan(model="mlp:width=256,layers=4", schedule_spec=spec, partition=(2, 2), microbatch_size=1, batch_size=2,
                compression=None, predicted=Predicted(1.0, 2.0))  # fmt: skip
    save_json(plan, folder / "mlp_plan.json")
    save_json(replace(plan, model="graph elsewhere/vgg16.graph.txt"), folder / "graph_plan.json")
    save_json(replace(plan, partition=(1, 1, 2)), folder / "three_plan.json")
    save_json(replace(profile(*[layer()] * 4), model="mlp:layers=3"), folder / "short.json")
    bare = measurement(input_bytes=0, output_bytes=0, output_storage_bytes=0, saved_bytes=0)
    save_json(profile(*[layer(bare, weight_bytes=0, optimizer_bytes=0)] * 4), folder / "bare.json")
    (folder / "gpu.json").write_text(json.dumps(GPU))
    (folder / "circle.txt").write_text(f"{NODE % 1}{NODE % 2}\tnode1 -- node2\n\tnode2 -- node1\n")
    return folder


@pytest.fixture
def bad(folder, models, no_ranks):
    """Add files that are broken, or that do not go with what is asked."""
    for name, text in {
        "whole.csv": "layer,fwd_ms,bwd_ms\nembed,1,2\nblock,3,6\nhead,1,2\n",
        "junk.csv": "0F0,0X1\n1F0\n",
        "timeline.json": '{"format": "pipesched.timeline"}',
        "cut.json": '{"a": ',
        "other.json": '{"format": "x"}',
        "one.json": CLUSTER,
    }.items():
        (folder / name).write_text(text)
    measured = play(build("gpipe", 2, 4), source="measured")
    (folder / "measured.json").write_text(timeline_to_json(measured))
    (folder / "works.json").write_text(timeline_to_json(replace(measured, spans=measured.without_messages)))
    (folder / "predicted.json").write_text(timeline_to_json(play(build("gpipe", 2, 4))))
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 4)
    (folder / "folder.json").mkdir()
    traces = folder / "traces"
    traces.mkdir()
    first, second = two_ranks(traces)
    (traces / "broken.json.gz").write_bytes(gzip.compress(first.read_bytes())[:-20])
    (traces / "nan.json").write_text('{"traceEvents": [{"ph": "X", "ts": NaN}]}')
    (traces / "early.json").write_text('{"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "PP:1F0"}]}')
    hours = KinetoFile(1, base_ns=BASE_NS + 3 * 3600 * 10**9, host="another")
    hours.events = json.loads(second.read_text())["traceEvents"]
    hours.write(traces / "hours.json")
    (folder / "models").symlink_to(models)
    return folder


MESSAGES = Path(__file__).with_name("bad_input.txt")
"""Command lines with their refusals, one for each place that refuses; ``pytest --write-messages`` writes them anew."""


def rows_by_command():
    """Return the message of each line, by command."""
    text = MESSAGES.read_text(encoding="utf-8").splitlines()
    rows = {}
    for line, message in zip(text[::2], text[1::2], strict=True):
        rows.setdefault(line.split()[1], {})[line.removeprefix("$ ")] = message.removeprefix("pipesched: ")
    return rows


ROWS = rows_by_command()


def refusal(line):
    """Return the message of the refusal of a line, as the functions raise it that read the line."""
    forget_files()
    words = line.split()
    try:
        with make_program().make_context("pipesched", words) as context:
            context.command.invoke(context)
    except typer.TyperException as error:
        return complaint(error, " ".join(["pipesched", *(word for word in words[:1] if word in COMMANDS)]))
    except ValueError as error:
        return in_flags(error)


@pytest.fixture(scope="module")
def read_messages(request):
    """Return the messages by line, as they were read; they are kept where that was asked for."""
    messages = {line: message for rows in ROWS.values() for line, message in rows.items()}
    yield messages
    if request.config.getoption("--write-messages"):
        text = "".join(f"$ {line}\npipesched: {message}\n" for line, message in messages.items())
        MESSAGES.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("command", ROWS)
def test_each_place_that_refuses_a_line_says_what_was_expected(bad, read_messages, request, monkeypatch, command):
    before = sorted(bad.rglob("*"))
    monkeypatch.setattr("pipesched.schedules.common.limits.room_bytes", lambda: 6_000_000_000)
    said = {line: refusal(line) for line in ROWS[command]}
    read_messages |= said
    assert said == ROWS[command] or request.config.getoption("--write-messages")
    assert sorted(bad.rglob("*")) == before


@pytest.mark.parametrize("line", [next(iter(rows)) for rows in ROWS.values()])
def test_bad_input_is_told_in_one_line_with_exit_code_2(pipesched, bad, line):
    """Twenty lines, one for each command that refuses something, from the words of the user to the exit code."""
    before = sorted(bad.rglob("*"))
    answer = pipesched(line)
    assert (answer.code, answer.out, answer.err) == (2, "", f"pipesched: {ROWS[line.split()[0]][line]}\n")
    assert sorted(bad.rglob("*")) == before


def test_parquet_without_pyarrow_names_pyarrow(pipesched, folder, monkeypatch):
    monkeypatch.setattr("pipesched.simulator.views.timeline_frame.find_spec", lambda name: None)
    answer = pipesched(f"{SIMULATE} {COSTS} --timeline x.parquet --out y.json")
    assert (answer.code, answer.out, answer.err.count("\n")) == (4, "", 1)
    assert "pyarrow" in answer.err
    assert not (folder / "y.json").exists()


def test_a_package_that_is_missing_is_named(pipesched, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "pipesched.simulator.views.gantt_figure", raising=False)
    answer = pipesched(f"gantt -f mine.csv {COSTS} --out x.png")
    assert answer.code == 4
    assert "matplotlib" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        "profile mlp --device cuda",
        "run -s 1f1b -p 2 -m 4 --model mlp --device cuda",
        "verify mlp -p 2 -m 4 --device cuda",
        "profile-links --out x.json --backend nccl",
    ],
)
def test_a_gpu_that_is_not_there_is_said(pipesched, folder, monkeypatch, line):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = sorted(folder.iterdir())
    answer = pipesched(line)
    assert (answer.code, answer.out, answer.err.count("\n")) == (4, "", 1)
    assert line.split()[-2] in answer.err
    assert sorted(folder.iterdir()) == before
