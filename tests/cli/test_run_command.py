"""``profile``, ``run`` and ``verify``, with real processes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from pipesched.executor import RankFailed
from pipesched.executor.runs import Measured, whole_model_losses
from pipesched.profiles.clusters import Link
from pipesched.profiles.costs import uniform
from pipesched.profiles.io import load_profile, read_cluster
from pipesched.schedules import MemorySample
from pipesched.schedules.builders import build
from pipesched.schedules.formats import from_json, read_timeline
from pipesched.simulator.engine import simulate_lists
from pipesched.workflows.verifying.verified_schedule import relative_difference, with_initial_weights
from tests.trace_rules import check_trace

MODEL = "gpt:layers=2,width=16,heads=2,context=8"
FAST = "--iterations 1 --timeout 600"


@pytest.mark.parametrize(
    "line",
    ["run -s 1f1b -p 2 -m 2 --job a.json", "train -s 1f1b -p 2 -m 2 --batch-size 4 --steps 1 --job a.json"],
)
def test_every_command_of_a_model_takes_it_as_an_argument_or_an_option(pipesched, folder, line):
    command, _, rest = line.partition(" ")
    jobs = []
    for which in (MODEL, f"--model {MODEL}"):
        assert pipesched(f"{command} {which} {rest}").code == 0
        jobs.append((folder / "a.json").read_text())
    assert jobs[0] == jobs[1]
    assert json.loads(jobs[0])["model"].startswith(MODEL)


@pytest.fixture
def profiled(pipesched):
    """Profile the model into p.json."""
    answer = pipesched(f"profile --model {MODEL} --microbatch-sizes 1,2 --repeats 1 --out p.json")
    assert (answer.code, answer.err) == (0, "")
    return pipesched


def test_a_profile_is_shown_written_and_used(profiled, folder):
    assert load_profile(folder / "p.json").microbatch_sizes == (1, 2)
    data = json.loads(profiled("simulate -s 1f1b -p 2 -m 4 --profile p.json --microbatch-size 2 --json").out)
    assert data["makespan_s"] > 0
    for partition in ("uniform", "balanced", "1,3"):
        assert profiled(f"simulate -s 1f1b -p 2 -m 4 --profile p.json --partition {partition}").code == 0


def test_a_job_is_written_and_not_run(pipesched, folder):
    assert pipesched(f"run -s 1f1b -p 2 -m 4 --model {MODEL} --device cuda --dtype bfloat16 --job job.json").code == 0
    job = json.loads((folder / "job.json").read_text())
    assert (job["device"], job["dtype"], job["bounds"]) == ("cuda", "bfloat16", [[0, 2], [2, 4]])


def test_a_job_of_an_emulated_run_takes_the_machines_along(pipesched, folder):
    nodes = "--nodes 2 --gpus 1 --intra latency_s=0 --inter latency_s=0.5"
    assert pipesched(f"run -s 1f1b -p 2 -m 4 --uniform f=1,b=2 {nodes} --job job.json").code == 0
    cluster = read_cluster(json.loads((folder / "job.json").read_text())["job"]["cluster"], "the job's cluster")
    assert ([device.node for device in cluster.devices], cluster.link(0, 1), cluster.nics) == ([0, 1], Link(0.5), ())
    assert pipesched("run -s 1f1b -p 2 -m 4 --uniform f=1,b=2 --job job.json").code == 0
    assert json.loads((folder / "job.json").read_text())["job"]["cluster"] is None


@pytest.fixture
def launched(monkeypatch):
    """Return what sets the answer of a launch, a function of its job, in place of ranks."""
    monkeypatch.setattr("pipesched.executor.launch.fork_client.prepare", lambda device: None)

    def answer(launch):
        monkeypatch.setattr("pipesched.executor.runs.launch", lambda job, tick: launch(job))

    return answer


def played(job, losses, **changes):
    """Return the run of a job with these losses, whose F and B take 1 s and 2 s."""
    timeline = simulate_lists(from_json(job.job.schedule, "job"), uniform(2, 1.0, 2.0))
    return Measured(replace(timeline, source="measured", **changes), (1.0,), losses)


@pytest.mark.distributed
def test_a_run_writes_the_measured_timeline_and_prints_data_only(pipesched, folder):
    answer = pipesched(f"run -f mine.csv --stage-costs stages.csv {FAST} --json --out measured.json")
    assert (answer.code, answer.err) == (0, "")
    data = json.loads(answer.out)
    timeline = read_timeline(folder / "measured.json")
    assert timeline.source == "measured"
    assert data["makespan_s"] == timeline.makespan_s > 0.138
    assert data["first_loss"] is None


@pytest.mark.parametrize(("limit", "code"), [(6999, 1), (7000, 0)])
def test_a_device_that_held_too_much_is_the_answer_no(pipesched, launched, limit, code):
    memory = (MemorySample(0, 0.0, (("weights", 1000),)), MemorySample(1, 1.0, (("weights", 7000),)))
    launched(lambda job: played(job, (2.0,), memory=memory))
    answer = pipesched(f"run -s gpipe -p 2 -m 2 --model mlp --memory-limit {limit}")
    assert answer.code == code
    assert "6.836 KiB" in answer.out
    assert ("device 1" in answer.err) == bool(code)


def test_a_run_of_a_plan_is_set_beside_what_the_plan_predicted(pipesched, launched, folder):
    (folder / "two.csv").write_text("layer,forward_s,backward_s\n0,1,2\n1,1,2\n")
    assert pipesched("plan two.csv -b 2 --devices 2 --depth 2 -s gpipe --microbatch-sizes 1 --out plan.json").code == 0
    launched(lambda job: played(job, (2.0,)))
    line = "run --plan plan.json --layer-costs two.csv"
    makespan = json.loads(pipesched(f"{line} --json").out)["planned"]["quantities"][0]
    assert (makespan["predicted"], makespan["measured"]) == (9.0, 9.0)  # (m + p - 1) (f + b)
    assert "as planned and as measured" in pipesched(line).out


@pytest.mark.distributed
def test_a_rank_that_fails_is_named_with_exit_code_3(pipesched, folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    model = "tests.executor.faulty_models:raising:layer=2,at=3"
    answer = pipesched(f"run -s 1f1b -p 2 -m 4 --partition 2,1 --model {model} {FAST} --out x.json")
    assert (answer.code, answer.out, answer.err.count("\n")) == (3, "", 1)
    assert all(part in answer.err for part in ("rank 1", "1F3", "a layer's own fault"))
    assert not (folder / "x.json").exists()


def test_losses_that_are_no_numbers_are_null_in_the_data_and_no_agreement(pipesched, launched, profiled):
    launched(lambda job: played(job, (math.nan,) * 2))
    line = "-s 1f1b -p 2 -m 2 --json"
    ran, verified = (pipesched(words) for words in (f"run {MODEL} {line}", f"verify {MODEL} --profile p.json {line}"))
    assert (ran.code, ran.err, verified.code, verified.err) == (0, "", 1, "")
    assert json.loads(ran.out)["first_loss"] is None
    assert json.loads(verified.out)["schedules"][0]["largest_loss_difference"] is None


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        (1.5, 1.0, 0.5),
        (-1.5, -1.0, 0.5),
        (0.0, 0.0, 0.0),
        (1.0, 0.0, math.inf),
        (math.nan, math.nan, math.inf),
        (math.nan, 1.0, math.inf),
        (1.0, math.nan, math.inf),
        (math.inf, math.inf, math.inf),
    ],
)
def test_a_loss_is_off_by_a_share_of_what_it_should_be(got, want, expected):
    assert relative_difference(got, want) == expected


@pytest.mark.distributed
def test_verify_writes_everything_the_losses_agree_and_a_limit_is_judged(profiled, folder):
    line = f"verify {MODEL} -s pipedream -p 2 -m 4 --profile p.json {FAST} --memory-limit 1024 --json --out made/here"
    answer = profiled(line)
    assert (answer.code, answer.err.count("\n"), "at most 1 KiB" in answer.err) == (1, 1, True)
    (row,) = json.loads(answer.out)["schedules"]
    assert row["largest_loss_difference"] <= 1e-6, "of every micro-batch"
    made = folder / "made" / "here"
    assert read_timeline(made / "pipedream-predicted.json").source == "predicted"
    measured = read_timeline(made / "pipedream-measured.json")
    assert (measured.source, measured.memory != ()) == ("measured", True)
    assert (made / "pipedream.png").read_bytes().startswith(b"\x89PNG")
    trace = (made / "pipedream-trace.json").read_text()
    assert check_trace(trace) == []
    tracks = {event["name"] for event in json.loads(trace)["traceEvents"] if event["ph"] == "C"}
    assert tracks == {"memory (predicted)", "memory (measured)"}


def test_a_run_in_one_thread_is_said_to_be_so_by_verify_and_by_what_reads_its_timeline(profiled, folder):
    said = "all ranks took turns on one thread of a CPU: none of their ops overlap"
    answer = profiled(f"verify {MODEL} -s gpipe -p 2 -m 2 --profile p.json {FAST} --transport streams --out made")
    assert (answer.code, answer.err) == (0, "")
    assert said in " ".join(answer.out.split())
    both = "made/gpipe-measured.json", "made/gpipe-predicted.json"
    assert read_timeline(folder / both[0]).launch_s >= read_timeline(folder / both[0]).makespan_s
    for command in (f"replay {both[0]}", f"compare {' '.join(both)}", f"what-if {both[0]} -s 1f1b"):
        notes = json.loads(profiled(f"{command} --json").out)["notes"]
        assert any(note.endswith(said) for note in notes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpipe", [True, True, True, True]),
        ("pipedream", [True, False, False, False]),  # the last stage steps after every micro-batch
        ("pipeoptim", [True, False, False, False]),
        ("spectrain", [True, False, False, False]),
    ],
)
def test_a_loss_can_be_compared_where_no_stage_has_stepped_before_the_forward(name, expected):
    assert with_initial_weights(build(name, 3, 4)) == expected


def test_what_earlier_schedules_gave_is_told_when_a_later_one_fails(profiled, folder, launched):
    def launch(job):
        if from_json(job.job.schedule, "job").name == "1f1b":
            raise RankFailed("rank 1 failed at 1F3 (micro-batch 3): a layer's own fault")
        return played(job, whole_model_losses(job))

    launched(launch)
    line = f"verify {MODEL} -s gpipe,1f1b,naive -p 2 -m 4 --profile p.json {FAST}"
    answer = profiled(f"{line} --json --out made")
    said = "pipesched: verify 1f1b: rank 1 failed at 1F3 (micro-batch 3): a layer's own fault\n"
    assert (answer.code, answer.err) == (3, said)
    assert [row["name"] for row in json.loads(answer.out)["schedules"]] == ["gpipe"]
    assert {path.name for path in (folder / "made").iterdir()} == {
        "gpipe-predicted.json", "gpipe-measured.json", "gpipe.png", "gpipe.html", "gpipe-trace.json",
    }  # fmt: skip
    answer = profiled(line)
    assert (answer.code, answer.err) == (3, said)
    assert "gpipe: loss " in answer.out
    assert profiled(line.replace("gpipe,1f1b", "1f1b,gpipe")) == (3, "", said)
