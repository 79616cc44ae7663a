"""`pipesched.plan_layout`: the GPU of a cluster, the layouts of a trainer, and their flags."""

import json
import re
import tomllib

import pytest

import pipesched
from pipesched.profiles.clusters import Cluster, Device, of_nodes
from pipesched.profiles.io import load_machine
from pipesched.schedules.transforms import with_step_barrier
from pipesched.workflows import ArgumentError
from pipesched.workflows.planning import LayoutSearch

SMALL = "transformer:layers=8,hidden=2048,heads=16,kv_heads=8,ffn=8192,gated=yes,vocab=32000,seq=4096"
DGX = load_machine("dgx-h100")


def search(**settings) -> LayoutSearch:
    return pipesched.plan_layout(SMALL, of_nodes(DGX, 2), batch_size=32, num_workers=1, **settings)


def test_rates_of_the_best_layout_agree_with_its_seconds():
    result = search(top=3)
    best = result.to_dict()["layouts"][0]
    assert result.request.gpu.name == "h100"
    assert best["tokens_per_s_per_gpu"] == pytest.approx(32 * 4096 / best["seconds"] / 16)
    assert 0.05 < best["mfu"] < 0.8
    assert best["peak_bytes"] == max(best["device_bytes"]) <= DGX.devices[0].memory_bytes
    sizes = [best[name] for name in ("pipeline", "tensor", "context", "data")]
    assert pytest.approx(16) == sizes[0] * sizes[1] * sizes[2] * sizes[3]
    assert best["data"] * best["num_microbatches"] * best["microbatch_size"] == 32
    assert sum(best["partition"]) == 8 + 2
    assert list(result.to_frame()["seconds"]) == [layout["seconds"] for layout in result.to_dict()["layouts"]]


def test_lists_of_counts_narrow_the_search():
    result = search(tensor=[4], context=1, depths=2, zero=1, sizes=[2], recompute="yes", schedules=["1f1b"])
    (layout,) = result.to_dict()["layouts"]
    assert (layout["pipeline"], layout["tensor"], layout["data"], layout["zero"]) == (2, 4, 2, 1)
    assert (layout["microbatch_size"], layout["recompute"], layout["schedule"]) == (2, "full", "1f1b")


def test_megatron_gets_the_planned_sizes():
    result = search(tensor=2, depths=4, zero=1, sizes=1, schedules=["interleaved"], chunks=2, trainer="megatron")
    text, best = result.export("megatron"), result.to_dict()["layouts"][0]
    flags = dict(re.findall(r"^ +--(\S+) ?(.*)$", text, re.MULTILINE))
    assert flags["pipeline-model-parallel-size"] == "4"
    assert flags["tensor-model-parallel-size"] == "2"
    assert flags["micro-batch-size"] == "1"
    assert flags["global-batch-size"] == "32"
    assert f"# Predicted: {best['seconds']:.4g} s per step, {best['peak_bytes'] / 2**30:.1f} GiB on a GPU." in text
    assert {"sequence-parallel", "use-distributed-optimizer", "overlap-grad-reduce", "bf16"} <= flags.keys()
    stages = flags["pipeline-model-parallel-layout"].strip("'").split("|")
    assert [*map(len, stages)] == list(best["partition"])


def test_each_trainer_gets_only_what_it_runs():
    assert {layout["zero"] for layout in search(trainer="megatron").to_dict()["layouts"]} <= {0, 1}
    result = search(trainer="deepspeed", time_limit_s=None)
    assert {(layout["tensor"], layout["schedule"]) for layout in result.to_dict()["layouts"]} == {(1, "1f1b")}
    config = json.loads(result.export("deepspeed"))["config"]
    assert config["train_batch_size"] == 32
    assert config["bf16"] == {"enabled": True}
    assert search(trainer="torchtitan", top=1).export("torchtitan")


def test_each_choice_alone_agrees_with_a_search_of_that_choice():
    result = search(time_limit_s=None, zero=[1, 3], chunks=2)
    assert result.ranking.is_complete
    by_choice = {(choice.choice, choice.value): choice for choice in result.choices}
    for column in ("pp", "tp", "mbs", "recompute"):
        counts = [choice.layouts for (name, _), choice in by_choice.items() if name == column]
        assert sum(counts) == len(result.ranking.considered)
    assert len(by_choice) == len(result.to_dict()["choices"])
    for size in (1, 2, 4, 8):
        alone, choice = search(time_limit_s=None, zero=[1, 3], chunks=2, tensor=size, top=1), by_choice["tp", size]
        assert choice.layouts == len(alone.ranking.considered)
        assert choice.over_memory >= sum(bound == float("inf") for bound, _ in alone.ranking.considered)
        if choice.is_bound:
            assert choice.seconds <= alone.best.seconds
        else:
            assert choice.seconds == alone.best.seconds
    assert not by_choice["tp", 1].is_bound or not by_choice["tp", 2].is_bound


def test_a_choice_that_does_not_divide_or_fit_has_its_reason():
    rows = {row["choice"]: row for row in search(tensor=[2, 8, 16], depths=2, recompute="no").choices_table().rows}
    few = pipesched.plan_layout(
        SMALL.replace("hidden=2048,heads=16,kv_heads=8", "hidden=1536,heads=12,kv_heads=12"), DGX, batch_size=8, top=1
    )
    undivided = {row["choice"]: row for row in few.choices_table().rows}
    assert undivided["tp 8"] == {"choice": "tp 8", "layouts": "0", "over memory": "0", "fastest": "does not divide"}
    assert rows["tp 2"]["layouts"] != "0"
    large = pipesched.plan_layout("llama3-70b", DGX, batch_size=8, sizes=1, num_workers=1)
    assert large.best is None
    assert {row["fastest"].split()[0] for row in large.choices_table().rows} == {"needs"}


def test_a_trainer_that_runs_no_layout_has_its_reason():
    result = search(tensor=4, trainer="deepspeed")
    assert result.best is None
    assert "the first: tensor parallelism: got 4, expected 1, as a PipelineModule of DeepSpeed" in result.nothing_fits


def test_a_model_that_no_trainer_runs_is_planned_but_not_exported_and_the_reason_is_below_its_table():
    model, narrow = f"{SMALL},mtp=1", {"depths": 1, "tensor": 1, "zero": 1, "sizes": 1, "recompute": "no", "top": 1}
    result = pipesched.plan_layout(model, DGX, batch_size=8, num_workers=1, **narrow)
    assert result.trainers == {"torchtitan": (), "megatron": (), "deepspeed": ()}
    caption = result.table().caption
    assert "torchtitan none; megatron none; deepspeed none\n  torchtitan: got transformer:" in caption
    assert caption.endswith("expected no such prediction, as the export has no flags for it; try the model with mtp=0")
    assert "found" not in caption
    with pytest.raises(ArgumentError, match=r"multi-token prediction \(1\), expected no such prediction"):
        result.export("megatron")
    with pytest.raises(ArgumentError, match=r"multi-token prediction \(1\), expected no such prediction"):
        pipesched.plan_layout(model, DGX, batch_size=8, trainer="megatron")


def test_a_search_that_stops_early_says_how_many_rows_are_missing():
    caption = search(top=3, time_limit_s=0).table().caption
    assert re.search(r"stopped early: another layout may be .*% faster; 1 of 3 plans found", caption)


def test_layouts_leave_a_margin_of_memory():
    tight = "transformer:layers=24,hidden=8192,heads=64,kv_heads=8,ffn=28672,gated=yes,vocab=32000,seq=4096"
    memory = DGX.devices[0].memory_bytes
    usual, full = (
        pipesched.plan_layout(tight, DGX, batch_size=16, num_workers=1, **margin)
        for margin in ({}, {"memory_margin": 0.0})
    )
    assert usual.request.memory_bytes == int(0.9 * memory)
    assert full.request.memory_bytes == usual.gpu_bytes == memory
    assert max(outcome.held_bytes for outcome in usual.ranking.ranked) <= 0.9 * memory
    assert 0.9 * memory < max(outcome.held_bytes for outcome in full.ranking.ranked) <= memory
    assert full.best.seconds <= usual.best.seconds
    data = usual.to_dict()
    assert (data["memory_bytes"], data["memory_limit_bytes"]) == (memory, int(0.9 * memory))
    assert "layouts fill at most 71.26 GiB, 90% of 79.18 GiB" in usual.table().caption


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zero": 2, "trainer": "megatron"}, "zero: got 2, expected stages among 0, 1, as megatron has no other"),
        ({"schedules": ["pipedream"]}, "schedules: got pipedream, which trains on stale weights"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        search(**settings)


def test_machines_without_a_data_sheet():
    with pytest.raises(ArgumentError, match="gpu: got none, and no data sheet with the memory"):
        pipesched.plan_layout(SMALL, Cluster((Device(memory_bytes=10**9),) * 4, DGX.intra), batch_size=8)
    with pytest.raises(ArgumentError, match="cluster: got links of unlimited bandwidth"):
        pipesched.plan_layout(SMALL, Cluster((Device(),) * 4), batch_size=8, gpu="h100")
    with pytest.raises(ArgumentError, match="cluster: got devices or links that differ"):
        pipesched.plan_layout(SMALL, Cluster((Device(), Device(speed=0.5))), batch_size=8)
    with pytest.raises(pipesched.ProfileError, match="gpu: got 'nosuch'"):
        pipesched.plan_layout(SMALL, DGX, batch_size=8, gpu="nosuch")


def test_torchtitan_compiles_layers_whose_backward_is_whole():
    narrow = {"depths": 2, "tensor": 1, "context": 1, "sizes": 1, "top": 1, "trainer": "torchtitan"}
    whole, split = (
        tomllib.loads(search(schedules=[name], **narrow).export("torchtitan")) for name in ("1f1b", "zb_h1")
    )
    assert whole["compile"]["enable"]
    assert "compile" not in split
    assert split["parallelism"]["pipeline_parallel_schedule_csv"]


def test_a_layout_of_torchtitan_takes_as_long_beside_schedules_that_split_the_backward():
    narrow = {"depths": 4, "tensor": 1, "context": 1, "sizes": 1, "zero": 1, "recompute": "no", "top": 9}
    alone, beside = (
        search(schedules=names, trainer="torchtitan", **narrow).to_dict()["layouts"]
        for names in (["1f1b"], ["1f1b", "zbv"])
    )
    assert [layout for layout in beside if layout["schedule"] == "1f1b"] == alone
    assert len(beside) == 2


def test_torchtitan_has_no_float8_experts():
    with pytest.raises(ArgumentError, match="precision: got float8 for the experts of mixtral-8x7b"):
        pipesched.plan_layout("mixtral-8x7b", DGX, batch_size=8, trainer="torchtitan", precision="float8")


def test_a_layout_fits_in_simulate_too_with_the_same_bytes():
    result = search(depths=[2, 4], top=4)
    for outcome in result.ranking.ranked:
        layout = outcome.setting
        profile = result.request.profile(layout.sharding, layout.size)
        setup = pipesched.Setup(profile, result.request.pipeline(layout.num_ranks), partition=layout.partition)
        simulation = pipesched.simulate(with_step_barrier(layout.order.build()), setup)
        peaks = [device["peak_memory_bytes"] for device in simulation.to_dict()["devices"]]
        assert max(peaks) == outcome.held_bytes <= DGX.devices[0].memory_bytes
        assert simulation.makespan_s == pytest.approx(outcome.seconds, rel=0.02)  # plan adds the longest step
