"""Settings as torchtitan's TOML: written by hand, and every section and key held against torchtitan's own."""

import re
import tomllib
from dataclasses import replace
from typing import Any

import pytest

import pipesched
from pipesched.profiles.costs import LayerSharding
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.formats import to_json
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.workflows.exporting import PipelineSetting, export_setting
from tests.workflows.exporting.test_setting_export import UNEVEN, WHOLE, ZERO_BUBBLE, by_name, changed

TOML = """\
# torchtitan, 8 processes: 2 x 4 ranks of 1f1b
# Sections of a --job.config_file of torchtitan 0.2; add [model], [optimizer], the sequence length and the data.
# The model's first layer is its embedding, the last its output layer, all others are transformer layers.
# Recomputation keeps the input of every transformer layer; the setting keeps one input per stage.
# Recomputation runs inside the backward; the setting recomputes before the gradient has arrived.
# Copies share the optimizer states; in the setting each copy holds all of them.

[training]
local_batch_size = 16
global_batch_size = 32

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 2
fsdp_reshard_after_forward = "never"
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_microbatch_size = 2
module_fqns_per_model_part = [
    ["tok_embeddings", "layers.0", "layers.1", "layers.2"],
    ["layers.3", "layers.4"],
    ["layers.5", "layers.6"],
    ["layers.7", "layers.8", "layers.9", "norm", "output"],
]

[activation_checkpoint]
mode = "full"
"""
CSV = "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n"
JOB_CONFIG: dict[str, dict[str, Any]] = {
    "training": {
        "local_batch_size": int,
        "global_batch_size": int,
        "dtype": ("bfloat16", "float32"),
        "mixed_precision_param": ("bfloat16", "float32"),
    },
    "parallelism": {
        "data_parallel_replicate_degree": int,
        "data_parallel_shard_degree": int,
        "fsdp_reshard_after_forward": ("default", "always", "never"),
        "tensor_parallel_degree": int,
        "enable_async_tensor_parallel": bool,
        "pipeline_parallel_degree": int,
        "module_fqns_per_model_part": list,
        "pipeline_parallel_schedule": str,
        "pipeline_parallel_schedule_csv": str,
        "pipeline_parallel_microbatch_size": int,
        "context_parallel_degree": int,
        "expert_parallel_degree": int,
        "expert_tensor_parallel_degree": int,
        "expert_parallel_comm_backend": str,
    },
    "activation_checkpoint": {"mode": ("selective", "full", "memory_budget", "none"), "selective_ac_option": str},
    "compile": {"enable": bool, "components": list},
    "model": {"converters": list},
    "quantize": {"linear": dict},
}
"""Fields of JobConfig with their types or words, from torchtitan 0.2.2, torchtitan/config/job_config.py."""
SHARED = {"sharding": LayerSharding(tensor=4, has_sequence=True, recompute="selective")} | WHOLE


def config(setting: PipelineSetting) -> dict[str, Any]:
    """Return the parsed sections, all of whose keys torchtitan knows."""
    sections = tomllib.loads(export_setting(setting, "torchtitan"))
    for name, section in sections.items():
        for key, value in section.items():
            known = JOB_CONFIG[name][key]
            assert value in known if isinstance(known, tuple) else type(value) is known, (name, key)
    return sections


def comments(setting: PipelineSetting) -> list[str]:
    text = export_setting(setting, "torchtitan")
    return [line[2:] for line in text.splitlines() if line.startswith("# ")]


def schedule_file(text: str) -> str:
    """Return the file that the printed command, `sed -n 's/^#: //p'`, writes."""
    return "".join(line[3:] + "\n" for line in text.splitlines() if line.startswith("#: "))


def test_a_pipeline_by_hand():
    assert export_setting(UNEVEN, "torchtitan") == TOML
    config(UNEVEN)


def test_a_schedule_without_a_name_is_a_file_in_comments():
    text = export_setting(ZERO_BUBBLE, "torchtitan")
    assert "# The schedule: sed -n 's/^#: //p' THIS_FILE > pipeline_schedule.csv\n" in text
    assert schedule_file(text) == CSV
    assert config(ZERO_BUBBLE) == {
        "training": {"local_batch_size": 12, "global_batch_size": 12},
        "parallelism": {
            "data_parallel_replicate_degree": 1,
            "data_parallel_shard_degree": 1,
            "pipeline_parallel_degree": 2,
            "pipeline_parallel_schedule": "PipelineScheduleMulti",
            "pipeline_parallel_schedule_csv": "pipeline_schedule.csv",
            "pipeline_parallel_microbatch_size": 4,
            "module_fqns_per_model_part": [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]],
        },
        "activation_checkpoint": {"mode": "none"},
    }
    lists = replace(ZERO_BUBBLE, schedule_spec=ScheduleSpec(lists=to_json(build("zb_h1", 2, 3))))
    assert export_setting(lists, "torchtitan") == text.replace("ranks of zb_h1", "ranks of lists of your own")


def test_one_rank_accumulates_local_batches_and_replicates_weights():
    sections = config(changed(num_ranks=1, partition=(12,), dtype="bfloat16", **WHOLE))
    assert sections == {
        "training": {"local_batch_size": 2, "global_batch_size": 32, "mixed_precision_param": "bfloat16"},
        "parallelism": {
            "data_parallel_replicate_degree": 2,
            "data_parallel_shard_degree": 1,
            "pipeline_parallel_degree": 1,
        },
        "activation_checkpoint": {"mode": "none"},
    }


def one_rank(sharding: LayerSharding) -> PipelineSetting:
    return changed(num_ranks=1, width=1, partition=(12,), sharding=sharding, dtype="bfloat16", **WHOLE)


@pytest.mark.parametrize(
    ("setting", "degrees", "reshard"),
    [
        (changed(width=1, sharding=LayerSharding(data=2, zero=1), **WHOLE), (1, 2), "never"),
        (changed(width=2, sharding=LayerSharding(data=2, zero=1), **WHOLE), (2, 2), "never"),
        (changed(width=1, sharding=LayerSharding(data=2, zero=3), **WHOLE), (1, 2), "always"),
        (one_rank(LayerSharding(data=2)), (2, 1), None),
        (one_rank(LayerSharding(data=2, zero=2)), (1, 2), "never"),
        (one_rank(LayerSharding(data=2, zero=3)), (1, 2), "always"),
        (one_rank(LayerSharding(data=2, tensor=2, has_sequence=True, zero=3)), (1, 2), "always"),
        (one_rank(LayerSharding(context=2, zero=3)), (1, 1), "always"),
    ],
)
def test_stages_of_zero_are_shards_of_fsdp(setting, degrees, reshard):
    parallelism = config(setting)["parallelism"]
    names = ("data_parallel_replicate_degree", "data_parallel_shard_degree")
    assert tuple(parallelism[name] for name in names) == degrees
    assert parallelism.get("fsdp_reshard_after_forward") == reshard


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (changed(width=1, sharding=LayerSharding(data=2), **WHOLE), "zero: got 0, expected 1 or 3, as torchtitan sums"),
        (changed(width=1, sharding=LayerSharding(data=2, zero=2), **WHOLE), "zero: got 2, expected 1 or 3, as torch"),
        (one_rank(LayerSharding(data=2, zero=1)), "zero: got 1, expected 0 or 2 or 3, as torchtitan shards gradients"),
        (one_rank(LayerSharding(context=2)), "zero: got 0, expected 2 or 3, as torchtitan shards gradients"),
        (one_rank(LayerSharding(tensor=2)), "sequence parallelism: got none with tensor parallelism of 2, expected"),
        (
            replace(ZERO_BUBBLE, sharding=LayerSharding(has_graphs=True)),
            "schedule: got zb_h1, which splits the backward of compiled layers, expected a whole backward",
        ),
        (one_rank(LayerSharding(precision="float4")), "precision: got float4, expected bfloat16, float32, or float8"),
        (
            one_rank(LayerSharding(tensor=4, has_sequence=True, expert=2, expert_tensor=2)),
            "expert tensor parallelism: got 2, expected 1 or the tensor parallelism of 4",
        ),
    ],
)
def test_splits_that_torchtitan_lacks_are_refused(setting, message):
    with pytest.raises(pipesched.ArgumentError, match=f"^{re.escape(message)}"):
        export_setting(setting, "torchtitan")


def test_float8_is_a_converter_and_compiled():
    sections = config(replace(UNEVEN, sharding=LayerSharding(precision="float8"), dtype="bfloat16"))
    assert sections["model"] == {"converters": ["quantize.linear.float8"]}
    assert sections["quantize"] == {"linear": {"float8": {"filter_fqns": ["output"]}}}
    assert sections["compile"] == {"enable": True, "components": ["model", "loss"]}


def test_selective_recomputation_and_groups():
    sections = config(changed(**SHARED))
    assert sections["parallelism"]["tensor_parallel_degree"] == 4
    assert sections["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}
    experts = LayerSharding(tensor=2, context=2, expert=4, has_sequence=True, hides_tensor=True, zero=1)
    parallelism = config(changed(sharding=experts, **WHOLE))["parallelism"]
    assert (parallelism["context_parallel_degree"], parallelism["expert_parallel_degree"]) == (2, 4)
    assert parallelism["enable_async_tensor_parallel"]


@pytest.mark.parametrize(
    ("dtype", "zero", "training"),
    [
        ("bfloat16", 0, {"dtype": "bfloat16"}),
        ("bfloat16", 1, {"mixed_precision_param": "bfloat16"}),
        ("float32", 1, {"mixed_precision_param": "float32"}),
        ("float32", 0, {}),
        ("", 1, {}),
    ],
)
def test_the_number_type_is_the_planned_one(dtype, zero, training):
    sharding = LayerSharding(data=2 if zero else 1, zero=zero)
    said = config(changed(width=1, sharding=sharding, dtype=dtype, **WHOLE))["training"]
    assert {key: value for key, value in said.items() if "batch" not in key} == training


def test_software_of_an_estimate_without_a_key_is_a_comment():
    setting = changed(width=1, sharding=LayerSharding(data=2, zero=1, has_fused_loss=True), **WHOLE)
    assert not [line for line in comments(setting) if "Assumed" in line]
    assert comments(replace(setting, is_estimated=True))[-1] == (
        "The estimate assumes, but torchtitan does not have: has_fused_gradients=True, has_fused_pointwise=True, "
        "has_fused_loss=True, hides_gradients=False, hides_weights=False."
    )


NOT_PLACED = {"data_parallel", "dualpipe", "chimera", "gems", "hanayo"}
"""They have a stage on several ranks, or stages neither in a loop nor in a V."""

EXPORTED = {
    name for name, entry in CATALOGUE.items() if not entry.traits.is_asynchronous and not entry.traits.averages
} - NOT_PLACED


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_pytorch_knows_the_schedule_or_reads_its_file_as_the_same_lists(tmp_path, name):
    torch_schedules = pytest.importorskip("tests.schedules.torch_schedules")
    lists = build(name, 4, 8)
    parallelism = config(by_name(name, lists))["parallelism"]
    kind = torch_schedules.pipelining.get_schedule_class(parallelism["pipeline_parallel_schedule"])
    if "pipeline_parallel_schedule_csv" not in parallelism:
        assert kind.__name__ in CATALOGUE[name].aliases
        return
    path = tmp_path / "pipeline_schedule.csv"
    path.write_text(schedule_file(export_setting(by_name(name, lists), "torchtitan")))
    is_v = kind is torch_schedules.pipelining.ScheduleZBVZeroBubble
    stages = [0, 7] if is_v else list(range(0, lists.num_stages, 4))
    runtime = torch_schedules.constructed("_PipelineScheduleRuntime", 4, 8, stages)
    runtime._load_csv(str(path))
    assert [list(map(str, runtime.pipeline_order[rank])) for rank in range(4)] == torch_schedules.words_of(lists)


@pytest.mark.parametrize("name", sorted(CATALOGUE.keys() - EXPORTED))
def test_every_other_schedule_is_refused(name):
    with pytest.raises(pipesched.ArgumentError, match=f"^schedule: got {name}"):
        export_setting(by_name(name, build(name, 4, 8)), "torchtitan")


def test_fewer_micro_batches_than_ranks_are_a_file_as_pytorchs_1f1b_refuses_them():
    text = export_setting(changed(num_microbatches=3), "torchtitan")
    assert schedule_file(text).startswith("0F0,0F1,0F2,0B0,0B1,0B2\n")
