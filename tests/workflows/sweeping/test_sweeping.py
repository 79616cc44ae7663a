"""A sweep says of every setting what `simulate` says of it, in any order and however it is shared out."""

import inspect
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import pipesched
from pipesched.profiles.clusters import Device, Link, dealt
from pipesched.profiles.costs import LayerCosts, StageCost
from pipesched.schedules.transforms import recompute
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.workflows import ArgumentError
from tests.profiles.hand_profiles import layer, measurement, profile

COSTS = pipesched.DeviceCost(
    1.0, backward_input_s=1.25, backward_weight_s=0.5, step_s=0.25, saved_bytes=100, output_bytes=8, weight_bytes=30
)
LINK = {"latency_s": [0.0, 0.125], "bandwidth_bytes_per_s": [16.0, 1e3]}
SETTING = {"schedule", "num_ranks", "num_microbatches", "num_chunks", "recomputes", "microbatch_size", *LINK}


def small(**others):
    conditions = {name: others.pop(name) for name in inspect.signature(pipesched.Setup).parameters if name in others}
    return pipesched.sweep(setup=pipesched.Setup(COSTS, **conditions), **SMALL | others)


def simulated(row, setup):
    """Simulate the setting of a row, under `setup` with another link and another memory limit."""
    names = ("schedule", "num_ranks", "num_microbatches", "num_chunks")
    lists = pipesched.build(*(row[name] for name in names))
    if row["recomputes"]:
        lists = recompute(lists, None, row.get("recompute_when") or "early")
    if LINK.keys() & row.keys():
        link = pipesched.Link(*(row[name] for name in LINK))
        cluster = pipesched.flat(row["num_ranks"], link)
        devices = (Device(memory_bytes=setup.limit_bytes),) * row["num_ranks"]
        setup = replace(setup, cluster=replace(cluster, devices=devices), limit_bytes=None)
    if row["microbatch_size"] is not None:
        setup = replace(setup, microbatch_size=row["microbatch_size"], partition="balanced")
    return pipesched.simulate(lists, setup)


ROUND = pipesched.DeviceCost(1e-3, backward_input_s=1e-3, backward_weight_s=1e-3, saved_bytes=10**6, output_bytes=8000)
"""In whole milliseconds many times are equal but for roundings, and so is the memory in use between them."""
MEASURED = profile(*[layer(*(measurement(n, forward_s=1.0 + n, backward_s=2.0 * n) for n in (1, 2)))] * 4)
SHARED_NIC = replace(pipesched.flat(3, pipesched.Link(0.1, 32.0)), nics=dealt(3, 1))
NETWORKS = [NetworkOptions(), NetworkOptions("eager"), NetworkOptions(slowdown=0.5)]
SMALL = {"schedules": ["1f1b", "zbv"], "num_ranks": [2, 3], "num_microbatches": [2, 4]}
SWEEPS = {
    "every dimension": (128, pipesched.Setup(COSTS, limit_bytes=400), {
        "schedules": ["1f1b", "interleaved", "zb_h2", "pipedream"], "num_ranks": [2, 3], "num_microbatches": [3, 6],
        "num_chunks": [2], "recompute": "both", "link": LINK,
    }),
    "lists that are simulated": (12, pipesched.Setup(COSTS), {
        "schedules": ["chimera", "gems"], "num_ranks": 4, "num_microbatches": 8,
        "link": {"latency_s": [0.0, 0.125], "bandwidth_bytes_per_s": [8.0, 16.0, 32.0]},
    }),
    "roundings": (32, pipesched.Setup(ROUND), {
        "schedules": ["1f1b", "interleaved", "zbv"], "num_ranks": [2, 4], "num_microbatches": [4, 8],
        "num_chunks": [1, 2], "link": {"latency_s": [0.0], "bandwidth_bytes_per_s": [1e6, 1e9]},
    }),
    "late recompute": (16, pipesched.Setup(COSTS), SMALL | {
        "schedules": ["1f1b", "zb_h2"], "recompute": "both", "recompute_when": "late",
    }),
    **{f"NIC {k}": (8, pipesched.Setup(COSTS, SHARED_NIC, network), SMALL) for k, network in enumerate(NETWORKS)},
    "sizes": (2, pipesched.Setup(MEASURED), SMALL | {
        "schedules": ["1f1b"], "num_ranks": 2, "num_microbatches": 4, "microbatch_sizes": [1, 2],
    }),
    "jitter": (8, pipesched.Setup(COSTS, jitter=0.2, seed=7), SMALL),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_every_row_is_the_answer_of_simulate_for_its_setting(name):
    count, setup, asked = SWEEPS[name]
    rows = pipesched.sweep(setup=setup, **asked).to_rows()
    assert len({tuple(value for key, value in row.items() if key in SETTING) for row in rows}) == len(rows) == count
    for row in rows:
        if row["schedule"] == "pipedream" and row["recomputes"]:
            continue  # its recomputing lists are no batch, and go on under its name
        simulation = simulated(row, setup)
        numbers = {
            "makespan_s": simulation.makespan_s,
            "bubble_fraction": simulation.bubble_fraction,
            "s_per_microbatch": 1 / simulation.throughput,
            "steady_s_per_microbatch": simulation.steady_s_per_microbatch,
            "steady_bubble_fraction": simulation.steady_bubble_fraction,
        }
        for key, number in numbers.items():
            assert row[key] == (number if number is None else pytest.approx(number, rel=1e-9, abs=1e-12)), key
        assert row["peak_memory_bytes"] == max(device.peak_memory_bytes for device in simulation.metrics.devices)
        assert row["fits"] is simulation.fits
    assert {row["fits"] for row in rows} == ({None} if setup.limit_bytes is None else {True, False})
    assert {row["steady_s_per_microbatch"] is None for row in rows} == {name == "jitter"}


def test_stages_per_rank_are_told_where_nobody_gave_them():
    rows = small(schedules=["1f1b", "interleaved"], num_microbatches=[6]).to_rows()
    assert {(row["schedule"], row["num_chunks"]) for row in rows} == {("1f1b", None), ("interleaved", 2)}


@pytest.mark.parametrize(("p", "m", "early_s", "late_s"), [(8, 8, 0.53, 0.6), (3, 4, 0.22, 0.24)])
def test_a_late_recompute_starts_when_the_gradient_is_there(p, m, early_s, late_s):
    costs, counts = pipesched.DeviceCost(0.01, 0.02), {"num_ranks": [p], "num_microbatches": [m]}
    for when, seconds in {None: early_s, "early": early_s, "late": late_s}.items():
        (row,) = pipesched.sweep(["1f1b"], costs, **counts, recompute="yes", recompute_when=when).to_rows()
        assert row["makespan_s"] == pytest.approx(seconds, rel=1e-12)
        assert row.get("recompute_when") == ("late" if when == "late" else None)


def test_sizes_of_micro_batches_come_from_the_profile_and_give_seconds_per_sample():
    asked = {"num_ranks": [2], "num_microbatches": [4]}
    result = pipesched.sweep(["1f1b"], MEASURED, **asked, microbatch_sizes=[1, 2])
    assert result.by == "s_per_sample"
    for row in result.to_rows():
        assert row["s_per_sample"] == pytest.approx(row["makespan_s"] / (4 * row["microbatch_size"]), rel=1e-12)
    default = pipesched.sweep(["1f1b"], MEASURED, **asked)
    assert [row["microbatch_size"] for row in default.to_rows()] == [1]


def test_a_setting_that_cannot_be_is_a_row_with_its_reason():
    result = pipesched.sweep(["1f1b", "dualpipe"], COSTS, num_ranks=[2, 3], num_microbatches=[4, 5])
    rows = {(row["schedule"], row["num_ranks"], row["num_microbatches"]): row for row in result.to_rows()}
    assert len(rows) == 8
    refused = {key for key, row in rows.items() if row["makespan_s"] is None}
    assert refused == {("dualpipe", 2, 5), ("dualpipe", 3, 4), ("dualpipe", 3, 5)}
    assert all("expected an even number" in rows[key]["reason"] and rows[key]["fits"] is None for key in refused)
    assert [row["makespan_s"] is None for row in result.to_rows()] == [False] * 5 + [True] * 3
    table = result.table()
    assert table.title == "8 settings, 3 invalid, best by s_per_microbatch"
    counts = [int(line.split()[1]) for line in table.caption.split("\n") if line.startswith("dualpipe: ")]
    assert (sum(counts), len(counts)) == (3, 2)  # an odd number of micro-batches, and of ranks


def test_a_builder_that_fails_is_asked_once_for_all_links():
    calls = []

    def failing(num_ranks, num_microbatches):
        calls.append((num_ranks, num_microbatches))
        if num_ranks > 2:
            raise pipesched.ScheduleError("got too many ranks")
        return pipesched.build("1f1b", num_ranks, num_microbatches)

    rows = small(schedules=[failing], num_microbatches=[2], link=LINK, limit_bytes=10**9).to_rows()
    reasons = [row["reason"] for row in rows if row["num_ranks"] == 3]
    assert len(reasons) == 4
    assert all(reason.endswith("got too many ranks") for reason in reasons)
    assert calls.count((3, 2)) == 1


def test_costs_without_any_time_are_refused_as_simulate_refuses_them():
    with pytest.raises(
        ArgumentError, match="1f1b: got a timeline in which no op takes time, expected an op that takes time"
    ):
        pipesched.sweep(["1f1b"], pipesched.DeviceCost(0.0, 0.0), num_ranks=2, num_microbatches=4)


def test_idle_devices_of_the_best_setting_are_named_with_the_best_that_has_none():
    result = small(num_ranks=[2, 4], num_microbatches=[4, 8])
    assert result.best.setting.num_ranks == 2
    whole = min((row for row in result.to_rows() if row["num_ranks"] == 4), key=lambda row: row["s_per_microbatch"])
    (line,) = [line for line in result.table().caption.splitlines() if "idle" in line]
    assert line.startswith(f"{result.best.setting.label} leaves 2 of 4 devices idle; the best on all 4 is")
    assert f"{whole['schedule']} p=4 m={whole['num_microbatches']}, time / m " in line
    assert line in json.loads(result.page().split('id="data">')[1].split("</script>")[0])["notes"]


def test_devices_of_the_cluster_that_no_setting_uses_are_named():
    result = small(cluster=pipesched.flat(8))
    assert "idle; no setting that fits uses all" in result.table().caption
    assert "idle" not in small(num_ranks=[2], cluster=pipesched.flat(2)).table().caption


def test_a_row_of_several_runs_is_the_run_of_median_makespan():
    for row in small(num_microbatches=[4], jitter=0.2, seed=3, num_runs=5).to_rows():
        counts = {"num_ranks": row["num_ranks"], "num_microbatches": 4}
        runs = [
            pipesched.simulate(
                pipesched.build(row["schedule"], **counts), pipesched.Setup(COSTS, jitter=0.2, seed=seed)
            )
            for seed in range(3, 8)
        ]
        median = sorted(runs, key=lambda run: run.makespan_s)[2]
        assert row["makespan_s"] == pytest.approx(median.makespan_s, rel=1e-12)
        assert row["bubble_fraction"] == pytest.approx(median.bubble_fraction, abs=1e-9)


def test_the_best_comes_first_and_the_front_is_beaten_by_none():
    result = small(recompute="both", num_microbatches=[2, 4, 8])
    values = [(outcome.s_per_microbatch, outcome.held_bytes) for outcome in result.outcomes]
    assert values == sorted(values)
    front = {value for value in values if not any(a <= value[0] and b <= value[1] and (a, b) != value
                                                  for a, b in values)}  # fmt: skip
    assert [(outcome.s_per_microbatch, outcome.held_bytes) for outcome in result.front] == sorted(front)
    assert small(by="peak_memory_bytes").best.held_bytes == min(o.held_bytes for o in small().outcomes)


def test_a_condition_leaves_settings_out_before_they_are_looked_at():
    result = small(where="m % p == 0 and schedule in ('zbv', 'gpipe') or p * v > 3 and not m > 2")
    kept = [(o.setting.schedule, o.setting.num_ranks, o.setting.num_microbatches) for o in result.outcomes]
    assert {*kept} == {("zbv", 2, 2), ("zbv", 2, 4), ("zbv", 3, 2)}  # zbv holds two stages on a rank


def test_a_frame_has_a_row_for_each_setting():
    result = pipesched.sweep(["avgpipe", "1f1b"], COSTS, num_ranks=[2], num_microbatches=[4],
                             parameters={"pipelines": [1, 2]}, where="m > p")  # fmt: skip
    frame = result.to_frame()
    assert frame.shape == (3, len(result.columns))
    assert sorted(frame["pipelines"].dropna()) == [1, 2]
    assert frame["s_per_microbatch"].is_monotonic_increasing
    missing = frame[["pipelines", "num_chunks", "microbatch_size", "s_per_sample"]]  # of one setting, or of all
    assert set(map(str, missing.dtypes)) == {"float64"}


def test_short_lists_come_first_so_that_the_file_grows_at_once(tmp_path):
    file = tmp_path / "kept.jsonl"
    small(num_ranks=[3, 2], num_microbatches=[16, 4, 64], resume=file)
    kept = [json.loads(line)["setting"] for line in file.read_text().splitlines()[1:]]
    lengths = [setting["num_ranks"] * setting["num_microbatches"] for setting in kept]
    assert lengths == sorted(lengths)


SWEEP = """
import pipesched
costs = pipesched.DeviceCost(1.0, 2.0)
pipesched.sweep(["1f1b", "gpipe"], costs, num_ranks=[4], num_microbatches=range(1, {most}), resume="kept.jsonl")
"""


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "pipedream"])
def test_each_of_many_links_has_its_own_cut_none_slower_than_simple_ones(name):
    asked = {"num_ranks": 2, "num_microbatches": 4}
    pairs = (1, 9), (5, 1), (2, 7), (1, 2), (4, 8), (3, 1)
    costs = LayerCosts(tuple(StageCost(k, 2 * k, output_bytes=1000 * size) for k, size in pairs))
    widths = [100.0 * 1.1**k for k in range(60)]
    rows = pipesched.sweep([name], costs, **asked, link={"bandwidth_bytes_per_s": widths}).to_frame()
    measure = "steady_s_per_microbatch" if name == "pipedream" else "makespan_s"
    lists = pipesched.build(name, **asked)
    swept = rows.set_index("bandwidth_bytes_per_s")[measure]
    for width in widths[::6]:
        cluster = pipesched.flat(2, Link(0.0, width))
        for partition in ("uniform", *(["3,3", "2,4"] if name != "interleaved" else [])):
            simple = pipesched.simulate(lists, pipesched.Setup(costs, cluster, partition=partition))
            assert swept[width] <= getattr(simple, measure) * (1 + 1e-9)
    for width in (widths[0], widths[-1]):
        own = pipesched.simulate(lists, pipesched.Setup(costs, pipesched.flat(2, Link(0.0, width))))
        assert swept[width] == pytest.approx(getattr(own, measure), rel=1e-9)


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_from_its_file(tmp_path):
    file = tmp_path / "kept.jsonl"
    with subprocess.Popen([sys.executable, "-P", "-c", SWEEP.format(most=200)], cwd=tmp_path) as process:
        while process.poll() is None and not (file.exists() and file.read_text().count("\n") > 3):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    known = file.read_text().count("\n") - 1
    assert known >= 3
    asked = {"num_ranks": [4], "num_microbatches": [3, 5, 199]}
    costs = pipesched.DeviceCost(1.0, 2.0)
    result = pipesched.sweep(["1f1b", "gpipe"], costs, **asked, resume=file)
    assert result.outcomes == pipesched.sweep(["1f1b", "gpipe"], costs, **asked).outcomes
    lines = file.read_text().splitlines()
    assert pipesched.sweep(["1f1b", "gpipe"], costs, **asked, resume=file).outcomes == result.outcomes
    assert file.read_text().splitlines() == lines, "all of them are known"
    with pytest.raises(SimulationError, match="got the journal of another search, expected one of these costs"):
        pipesched.sweep(["1f1b"], pipesched.DeviceCost(1.0, 3.0), **asked, resume=file)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"num_ranks": []}, "num_ranks: got an empty list, expected at least one"),
        ({"limit_bytes": "14GB"}, r"limit_bytes: got '14GB', expected an integer .*in bytes; try 14"),
        ({"num_chunks": [2]}, "num_chunks: got 2, expected a schedule that takes chunks"),
        (
            {"parameters": {"pipelines": [1]}},
            "parameters: got pipelines, expected parameters of the schedules in this call",
        ),
        ({"link": {"speed": [1]}}, "link: got 'speed', expected one of latency_s"),
        ({"link": {"bandwidth_bytes_per_s": [0]}}, "link: bandwidth_bytes_per_s: got 0, expected a number above 0"),
        ({"microbatch_sizes": [1]}, "microbatch_sizes: got sizes with costs that are not a profile"),
        ({"where": "q > 1"}, "where: got no column q, expected one of p, m, v, schedule"),
        ({"where": "m >"}, "where: got 'm >', expected a condition"),
        ({"where": "m ** 9"}, r"where: got 'm \*\* 9', expected only names of columns"),
        ({"where": "open('x')"}, "where: got .*open.*expected only names of columns"),
        ({"where": "m > 100"}, "where: got 'm > 100', which none of 8 settings meets"),
        ({"where": "m % 0"}, "where: got 'm % 0', expected a condition: integer"),
        ({"num_microbatches": range(1, 300_000)}, "a sweep: got 1,199,996 settings, expected at most 1,000,000"),
        ({"num_microbatches": [999_999_999]}, "all 4 settings are invalid; the reason of the first: schedule"),
        ({"num_workers": 2, "ray": "local"}, "ray: got `num_workers` too, expected only one of them"),
        ({"buffers": "at_use"}, "setup: got `buffers=at_use`, expected none: sweep does not use it"),
        ({"cluster": pipesched.flat(2), "link": {"latency_s": [1]}}, "link: got a cluster too"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, fault, tmp_path):
    with pytest.raises(ArgumentError, match=fault) as error:
        small(**arguments, resume=tmp_path / "kept")
    assert "\n" not in str(error.value)
    if not str(error.value).startswith("all 4"):
        assert not (tmp_path / "kept").exists()


def test_a_limit_needs_bytes_to_be_held_against():
    with pytest.raises(ArgumentError, match="limit_bytes: got costs without bytes"):
        pipesched.sweep(
            ["1f1b"], pipesched.Setup(pipesched.DeviceCost(1.0, 2.0), limit_bytes=5), num_ranks=2, num_microbatches=2
        )


def test_a_barrier_before_the_steps_is_as_simulated():
    """Periods of p = 4, m = 16, f = i = w = 1 s: with a barrier 57/16, 51/16 and 49.5/16 s; without a flush none."""
    costs = pipesched.DeviceCost(1.0, 2.0, 1.0, 1.0)
    names = ["1f1b", "zb_h1", "zbv", "pipedream"]
    swept = pipesched.sweep(names, costs, num_ranks=[4], num_microbatches=[16], step_barrier=True)
    paces = {outcome.setting.schedule: outcome.steady_s_per_microbatch for outcome in swept.outcomes}
    assert paces == {"1f1b": 57 / 16, "zb_h1": 51 / 16, "zbv": 49.5 / 16, "pipedream": None}
    (refused,) = [outcome for outcome in swept.outcomes if outcome.reason]
    assert "got a barrier before the steps, expected a schedule with a flush" in refused.reason
