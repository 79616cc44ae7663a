"""Bad input is one line on stderr, exit code 2 (4 when something is not there), and nothing is written."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copy

import pytest
import typer

from pipesched import costs_from_runs
from pipesched.cli.errors import forget_files, in_flags
from pipesched.cli.program import COMMANDS, complaint, make_program
from pipesched.profiles.costs import SampleWork
from pipesched.profiles.io import Plan, Predicted, save_json
from pipesched.schedules.builders import build
from pipesched.schedules.formats import timeline_to_json
from pipesched.schedules.transforms import ScheduleSpec
from tests.hand_timelines import play
from tests.profiles.hand_profiles import layer, measurement, profile
from tests.profiles.traces.kineto_files import BASE_NS, KinetoFile, two_ranks

DATA = Path(__file__).parents[2] / "profiles" / "data"
CLUSTER = '{"format": "pipesched-cluster", "version": 1, "devices": [{}], "intra": %s}'
NODE = "node%d -- Linear -- forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size=8\n"
GPU = {"memory_bytes": 10**9, "flops_per_s": {"bfloat16": 1e12}, "memory_bandwidth_bytes_per_s": 1e9,
       "link_bandwidth_bytes_per_s": 1e9, "efficiency": 0.5}  # fmt: skip
"""A GPU without a curve of its kernels."""
FAST = SampleWork(tokens=100, flops=1e15, peak_flops_per_s=1e12)
SIMULATE = "simulate -s 1f1b -p 2 -m 4"
COSTS = "--uniform f=1,b=2"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Write profiles, graphs and plans that go with few options, batches and models, or with none."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("conv-epyc.json", "pipedream/gnmt.graph.txt"):
        copy(DATA / name, folder)
    bare = measurement(input_bytes=0, output_bytes=0, output_storage_bytes=0, saved_bytes=0)
    save_json(profile(*[layer(bare, weight_bytes=0, optimizer_bytes=0)] * 4), folder / "bare.json")
    spec = ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=2)
    plan = Plan(model="", schedule_spec=spec, partition=(2, 2), microbatch_size=1, batch_size=2, compression=None,
                predicted=Predicted(1.0, 2.0))  # fmt: skip
    modules = {"command": "os:system:command=touch PLANTED", "module": "mymod:factory"}
    for name, model in {"mlp": "mlp:width=256,layers=4", "short": "mlp:layers=3", **modules}.items():
        save_json(replace(plan, model=model), folder / f"{name}_plan.json")
        save_json(replace(profile(*[layer()] * 4), model=model), folder / f"{name}.json")
    save_json(replace(plan, model="graph elsewhere/vgg16.graph.txt"), folder / "graph_plan.json")
    save_json(replace(plan, partition=(1, 1, 2)), folder / "three_plan.json")
    save_json(replace(plan, schedule_spec=replace(spec, name="1f1c")), folder / "unknown_plan.json")
    save_json(replace(profile(*[layer()] * 4), sample_work=FAST), folder / "fast.json")
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    (folder / "gpu.json").write_text(json.dumps(GPU))
    (folder / "circle.txt").write_text(f"{NODE % 1}{NODE % 2}\tnode1 -- node2\n\tnode2 -- node1\n")
    return folder


@pytest.fixture
def bad(folder, models, no_ranks):
    """Add files that are broken in every way."""
    header = "stage,forward_s,backward_s\n"
    for name, cell in {"nan": "nan", "negative": "-1", "infinite": "inf", "word": "x", "missing": ""}.items():
        (folder / f"{name}.csv").write_text(f"{header}0,{cell},1\n1,1,1\n")
    (folder / "three.csv").write_text(f"{header}0,1,1\n1,1,1\n2,1,1\n")
    (folder / "semicolons.csv").write_text("stage;forward_s;backward_s\n0;0,5;1\n1;0,5;1\n")
    (folder / "whole.csv").write_text("layer,fwd_ms,bwd_ms\nembed,1,2\nblock,3,6\nhead,1,2\n")
    (folder / "junk.csv").write_text("0F0,0X1\n1F0\n")
    (folder / "empty.csv").write_text("")
    (folder / "empty.json").write_text("")
    (folder / "timeline.json").write_text('{"format": "pipesched.timeline"}')
    (folder / "cut.json").write_text('{"a": ')
    (folder / "other.json").write_text('{"format": "x"}')
    (folder / "one.json").write_text(CLUSTER % '{"latency_s": 0, "bandwidth_bytes_per_s": null}')
    (folder / "nan.json").write_text(CLUSTER % '{"latency_s": NaN, "bandwidth_bytes_per_s": null}')
    (folder / "slow.json").write_text(CLUSTER % '{"latency_s": 0, "bandwidth_bytes_per_s": -1}')
    measured = play(build("gpipe", 2, 4), source="measured")
    (folder / "measured.json").write_text(timeline_to_json(measured))
    (folder / "works.json").write_text(timeline_to_json(replace(measured, spans=measured.without_messages)))
    (folder / "predicted.json").write_text(timeline_to_json(play(build("gpipe", 2, 4))))
    costs_from_runs(measured).save(folder / "costs.json")
    for suffix in ("csv", "json"):
        (folder / f"binary.{suffix}").write_bytes(bytes(range(256)) * 4)
        (folder / f"folder.{suffix}").mkdir()
    write_bad_traces(folder / "traces")
    (folder / "models").symlink_to(models)
    return folder


def write_bad_traces(folder):
    """Write the traces of two ranks, and some that do not go with them."""
    folder.mkdir()
    first, second = two_ranks(folder)
    (folder / "cut.json").write_bytes(first.read_bytes()[:500])
    (folder / "broken.json.gz").write_bytes(gzip.compress(first.read_bytes())[:-20])
    (folder / "nan.json").write_text('{"traceEvents": [{"ph": "X", "ts": NaN}]}')
    (folder / "early.json").write_text('{"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "PP:1F0"}]}')
    hours = KinetoFile(1, base_ns=BASE_NS + 3 * 3600 * 10**9, host="another")
    hours.events = json.loads(second.read_text())["traceEvents"]
    hours.write(folder / "hours.json")
    for rank in (0, 1):
        KinetoFile(rank).annotation("my forward", 0, 1).annotation("my loss", 1, 2).write(folder / f"mine{rank}.json")
        own = KinetoFile(rank).annotation(f"ProfilerStep#{rank + 7}", 0, 9).annotation(f"PP:{rank}F0", 0, 1)
        own.write(folder / f"step{rank}.json")


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
