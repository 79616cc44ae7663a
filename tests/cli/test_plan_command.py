"""``pipesched plan``, and what it writes."""

import csv
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from pipesched.profiles.io import load_plan, save_json
from tests.cli.conftest import BLOCKS
from tests.profiles.hand_profiles import layer, measurement, profile

PUBLISHED = Path(__file__).parents[2] / "profiles" / "data" / "pipedream"
GNMT = PUBLISHED / "gnmt.graph.txt"
NODES = "--nodes 2 --gpus 2 --intra bandwidth_bytes_per_s=1e10 --inter bandwidth_bytes_per_s=1e9 --nics 1"


@pytest.fixture
def measured(folder):
    """Return the name of a profile of eight layers of 3 s a sample, 24 bytes each."""
    layers = [layer(*(measurement(size, 1.0 * size, 2.0 * size) for size in (1, 2, 4))) for _ in range(8)]
    save_json(profile(*layers), folder / "mlp.json")
    return "mlp.json"


@pytest.mark.slow
def test_a_graph_is_planned_and_the_plan_simulates_as_it_was_predicted(pipesched, folder):
    answer = json.loads(pipesched(f"plan {GNMT} -b 8 {NODES} --depth 4 --out plan.json --json").out)
    best = answer["plans"][0]
    assert answer["complete"]
    assert answer["predicted"] <= answer["candidates"]
    for ranked in answer["plans"]:
        assert math.fsum(ranked["costs"].values()) == pytest.approx(ranked["seconds"]), "of what it is made"
    plan = load_plan(folder / "plan.json")
    assert plan.predicted.throughput == pytest.approx(8 / best["seconds"])
    simulated = json.loads(pipesched(f"simulate --plan plan.json --profile {GNMT} {NODES} --json").out)
    assert simulated["makespan_s"] == pytest.approx(best["seconds"])
    peaks = [device["peak_memory_bytes"] for device in simulated["devices"]]
    assert peaks == pytest.approx(list(plan.predicted.memory_bytes))
    by_itself, elsewhere = (
        json.loads(pipesched(f"simulate --plan plan.json --profile {GNMT} {machines} --json").out)
        for machines in ("", "--link latency=1s")
    )
    assert {**by_itself, "notes": []} == simulated
    assert by_itself["notes"] == ["devices and links are from the plan, 4 in 2 nodes; give --cluster for others"]
    assert elsewhere["makespan_s"] > simulated["makespan_s"]
    assert elsewhere["notes"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "steady"), [("-s 1f1b --depth 4", False), ("-s pipedream_2bw --asynchronous --depth 4", True)]
)
def test_table_picture_and_json_have_one_measure_of_a_bubble(pipesched, measured, folder, options, steady):
    """That of `simulate`, of the same lists; and that of the steady pace by its own name, which is `simulate`'s too."""
    line = f"plan {measured} -b 8 {NODES} {options} --top 1"
    (plan,) = json.loads(pipesched(f"{line} --json --out plan.json").out)["plans"]
    simulated = json.loads(pipesched(f"simulate --plan plan.json --profile {measured} {NODES} --json").out)
    busy_s = math.fsum(device["busy_s"] for device in simulated["devices"])
    if not steady:
        assert plan["bubble_fraction"] == pytest.approx(1 - busy_s / (4 * simulated["makespan_s"]), rel=1e-9)
        assert plan["steady_bubble_fraction"] == pytest.approx(plan["bubble_fraction"], rel=1e-9)
    assert load_plan(folder / "plan.json").predicted.bubble_fraction == plan["bubble_fraction"]
    for name in ("steady_s_per_microbatch", "steady_bubble_fraction"):
        assert plan[name] == pytest.approx(simulated[name], rel=1e-9, abs=1e-12)
    head, row = (
        [cell.strip() for cell in row.split(rule)[1:-1]]
        for row, rule in zip(pipesched(f"{line} --plot plan.svg --wide").out.splitlines()[2:5:2], "┃│", strict=True)
    )
    shown = dict(zip(head, row, strict=True))
    assert "bubble" not in shown
    picture = (folder / "plan.svg").read_text()
    for name in ("bubble_fraction", "steady_bubble_fraction"):
        assert shown[name] == f"{plan[name]:.2%}"
    for name in ("bubble_fraction", "steady_bubble_fraction")[: 1 + steady]:
        assert f" {name} {plan[name]:.1%}" in picture


def test_a_picture_shows_the_placement_and_of_one_of_many_copies_the_bubble_of_all(pipesched, measured, folder):
    nodes = "--nodes 5 --gpus 4 --intra latency_s=0 --inter bandwidth_bytes_per_s=10"
    line = f"plan {measured} -b 20 {nodes} --depth 4 -s 1f1b --top 1 --plot plan.svg --json"
    (plan,) = json.loads(pipesched(line).out)["plans"]
    assert plan["candidate"]["width"] == 5
    picture = (folder / "plan.svg").read_text()
    bubble = f"bubble_fraction {plan['bubble_fraction']:.1%}"
    for text in ("the first of 5 copies", bubble, ">node 0<", ">copy 1<", ">inside: no limit<"):
        assert text in picture


def test_the_table_has_the_ranking_the_reasons_and_what_does_not_fit_and_a_page_has_it_too(pipesched, measured, folder):
    answer = pipesched(f"plan {measured} -b 8 {NODES} --memory-limit 1500B --top 3 --wide --out plans.html")
    assert answer.code == 0
    assert "mlp, 8 samples per batch, 4 devices" in answer.out
    assert "no other candidate can be faster with balanced layers" in " ".join(answer.out.split())
    assert "instead of the first:" in answer.out
    assert "over memory" in answer.out
    page = json.loads(re.search(r'id="data">(.*)</script>', (folder / "plans.html").read_text())[1])
    assert [row[0] for row in page["search"]["rows"]] == ["1", "2-3"]
    assert all(cell in answer.out for row in page["search"]["rows"] for cell in row)


def test_idle_seconds_and_the_critical_path_are_explained(pipesched, measured):
    line = f"plan {measured} -b 8 {NODES} --depth 2 --top 1 --explain"
    answer = json.loads(pipesched(f"{line} --json").out)
    for device in answer["devices"]:
        assert device["busy_s"] + math.fsum(device["idle_by_cause_s"].values()) == pytest.approx(answer["makespan_s"])
    path = answer["critical_path"]
    assert all(a["end_s"] == b["start_s"] for a, b in pairwise(path))
    assert path[-1]["end_s"] - path[0]["start_s"] == pytest.approx(answer["makespan_s"])
    told = pipesched(line).out
    assert "critical path of" in told
    assert "rank 0: " in told


def test_stale_weights_are_only_tried_if_asked_for_and_said(pipesched, measured):
    line = f"plan {measured} -b 8 --devices 2 --depth 2 --schedules 1f1b,pipedream_2bw"
    plans = json.loads(pipesched(f"{line} --asynchronous --json").out)["plans"]
    assert {(plan["candidate"]["schedule"], plan["staleness"]) for plan in plans} == {("1f1b", 0), ("pipedream_2bw", 1)}
    assert "staleness" in pipesched(f"{line} --asynchronous").out


def test_where_nothing_fits_the_nearest_plan_is_named(pipesched, measured):
    answer = pipesched(f"plan {measured} -b 8 {NODES} --memory-limit 100B")
    assert (answer.code, answer.err.count("\n"), "100 B" in answer.err) == (1, 1, True)
    limit = answer.err.split("--memory-limit ")[1].split(",")[0]
    assert pipesched(f"plan {measured} -b 8 {NODES} --memory-limit {limit}B").code == 0


def test_the_page_goes_from_a_model_to_the_job_of_a_plan(pipesched, folder):
    block = next(block for block in BLOCKS if "pipesched plan small.json" in block)
    profile_line, plan_line, run_line = block.replace("\\\n", "").splitlines()
    for line in (profile_line, plan_line, f"{run_line} --job job.json"):
        answer = pipesched(line.removeprefix("pipesched "))
        assert (answer.code, answer.err) == (0, "")
    assert (folder / "plan.png").stat().st_size > 10_000
    assert json.loads((folder / "job.json").read_text())["model"].startswith("gpt:")


def test_what_tells_plans_apart_stands_before_what_they_amount_to(pipesched, measured, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    line = f"plan {measured} -b 8 --devices 2 --depth 2 -s 1f1b"
    both, plain = (pipesched(f"{line} --recompute {choice}").out for choice in ("both", "no"))
    head = next(row for row in both.splitlines() if "samples/s" in row)
    assert 0 < head.index("recompute") < head.index("memory") < head.index("samples/s")
    assert "recompute" not in plain
    nodes = pipesched(f"plan {measured} -b 8 {NODES} --depth 2 --wide").out
    head = next(row for row in nodes.splitlines() if "samples/s" in row)
    assert 0 < head.index("memory") < head.index("in a node") < head.index("samples/s")


TRANSFORMER = "transformer:layers=8,hidden=2048,heads=16,kv_heads=8,ffn=8192,gated=yes,vocab=32000,seq=4096"


def test_a_transformer_is_planned_from_estimates(pipesched):
    machines = "-b 32 --nodes 2 --machine dgx-h100 --workers 1"
    answer = json.loads(pipesched(f"plan {TRANSFORMER} {machines} --json").out)
    assert answer["estimated"]
    assert answer["complete"]
    assert answer["gpu"] == "h100"
    best = answer["layouts"][0]
    table = pipesched(f"plan {TRANSFORMER} {machines} --top 3").out
    assert "16 x h100 (estimated)" in table
    assert f"{best['mfu']:.1%}" in table
    flags = pipesched(f"plan {TRANSFORMER} {machines} --tp 2 --zero 1 --export megatron").out
    assert "--tensor-model-parallel-size 2\n" in flags
    assert "--use-distributed-optimizer\n" in flags
    refused = pipesched(f"plan {TRANSFORMER} {machines} --export megatron --out flags.sh")
    assert refused.code == 2
    assert (
        "--out: got flags.sh with --export, expected no file, because --export prints the flags; try > flags.sh"
        in refused.err
    )


def test_layouts_are_explained_and_written(pipesched, folder):
    line = f"plan {TRANSFORMER} -b 32 --nodes 1 --machine dgx-h100 --workers 1 --depth 1,2 --top 3"
    answer = pipesched(f"{line} --explain --out layouts.CSV --out layouts.json")
    assert answer.code == 0
    assert "each choice alone" in answer.out
    data = json.loads((folder / "layouts.json").read_text())
    rows = list(csv.DictReader((folder / "layouts.CSV").read_text().splitlines()))
    assert [float(row["seconds"]) for row in rows] == [layout["seconds"] for layout in data["layouts"]]
    assert rows[0]["partition"] == ",".join(map(str, data["layouts"][0]["partition"]))
    assert pipesched(f"{line} --out layouts.png").code == 2


def test_a_named_gpu_has_its_own_memory_and_node(pipesched):
    narrow = "-b 32 --tp 8 --zero 1 -s 1f1b --microbatch-sizes 1 --top 1 --workers 1 --json"
    answer = json.loads(pipesched(f"plan llama3-70b {narrow} --nodes 2 --gpu h200").out)
    assert answer["gpu"] == "h200"
    assert 85e9 < answer["layouts"][0]["peak_bytes"] < 141e9 * 1.1
    devices = json.loads(pipesched(f"plan llama3-70b {narrow} --devices 16 --gpu h200").out)
    assert devices["layouts"] == answer["layouts"]
    limited = pipesched(f"plan llama3-70b {narrow} --nodes 2 --gpu h200 --memory-limit 20GB")
    assert limited.code == 1
    assert "no layout fits into 16.76 GiB, 90% of 18.63 GiB" in limited.err
    of_node = pipesched(f"plan llama3-70b {narrow} --nodes 2 --machine dgx-h200 --memory-limit 20GB")
    assert (of_node.code, of_node.err) == (1, limited.err)
    small = "-b 32 --tp 2 --depth 2 -s 1f1b --microbatch-sizes 1 --top 1 --workers 1 --nodes 1"
    placed = pipesched(f"plan llama3-8b {small} --gpu h100 --machine dgx-a100")
    assert "90% of 39.39 GiB" in placed.out, "the memory of the machine"
