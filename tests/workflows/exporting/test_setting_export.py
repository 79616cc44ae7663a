"""Settings as flags of Megatron-LM and configuration of DeepSpeed, written by hand, and refusals of every trainer."""

import json
import shutil
import subprocess
import tomllib
from dataclasses import replace

import pytest

import pipesched
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.io import Plan, Predicted, save_json
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.workflows.exporting import PipelineSetting, export_setting

UNEVEN = PipelineSetting(
    schedule_spec=ScheduleSpec(
        name="1f1b", num_ranks=4, num_microbatches=8, width=2, placement="data", recompute=(0, 1, 2, 3)
    ),
    partition=(4, 2, 2, 4),
    microbatch_size=2,
)
ZERO_BUBBLE = PipelineSetting(
    schedule_spec=ScheduleSpec(name="zb_h1", num_ranks=2, num_microbatches=3), partition=(2, 2), microbatch_size=4
)

MEGATRON = """\
# Megatron-LM, 8 processes: 2 x 4 ranks of 1f1b
# The model's first layer is its embedding, the last its output layer, all others are transformer layers.
# Recomputation keeps the input of every transformer layer; the setting keeps one input per stage.
# Recomputation runs inside the backward; the setting recomputes before the gradient has arrived.
PIPELINE_ARGS=(
    --pipeline-model-parallel-size 4
    --num-layers 10
    --pipeline-model-parallel-layout 'Ettt|tt|tt|tttL'
    --micro-batch-size 2
    --global-batch-size 32
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
)
"""


def changed(setting=UNEVEN, **fields):
    """Return `setting` with other fields, of its schedule or of itself."""
    own = {
        name: fields.pop(name)
        for name in ("partition", "microbatch_size", "compression", "sharding", "dtype", "is_estimated")
        if name in fields
    }
    return replace(setting, schedule_spec=replace(setting.schedule_spec, **fields), **own)


def flags(text):
    """Return the array, by the first word of each line."""
    lines = text.split("PIPELINE_ARGS=(\n")[1].splitlines()[:-1]
    return {words[0]: words[1:] for words in map(str.split, lines)}


def test_megatron_is_told_in_flags():
    assert export_setting(UNEVEN, "megatron") == MEGATRON


@pytest.mark.parametrize(("recompute", "interval"), [("all", 3), (None, 0)])
def test_deepspeed_is_told_in_json(recompute, interval):
    assert json.loads(export_setting(changed(partition=(3, 3, 2, 2), recompute=recompute), "deepspeed")) == {
        "PipelineModule": {"num_stages": 4, "partition_method": "uniform", "activation_checkpoint_interval": interval},
        "config": {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8},
    }


@pytest.mark.parametrize(
    ("width", "num_ranks", "placement", "is_said"),
    [(2, 4, "pipeline", True), (2, 4, "data", False), (2, 1, "pipeline", False), (1, 4, "pipeline", False)],
)
def test_megatron_numbers_the_ranks_of_a_copy_in_a_row_only_where_that_is_said(width, num_ranks, placement, is_said):
    setting = changed(width=width, num_ranks=num_ranks, placement=placement, partition=(3,) * num_ranks, recompute=None)
    assert ("--use-tp-pp-dp-mapping" in flags(export_setting(setting, "megatron"))) == is_said


def test_megatron_recomputes_as_many_layers_at_a_time_as_divide_every_stage():
    said = flags(export_setting(changed(partition=(5, 2, 2, 5)), "megatron"))
    assert said["--pipeline-model-parallel-layout"] == ["'Etttt|tt|tt|ttttL'"]
    assert said["--recompute-num-layers"] == ["2"]


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 3), (4, 6, 2), (3, 8, 2), (4, 15, 2)])
def test_megatron_interleaves_in_our_order(p, m, v):
    """Its own: N micro-batches through all chunks, then the next N; N is p unless it is said."""
    setting = changed(
        name="interleaved", num_ranks=p, num_microbatches=m, num_chunks=v, partition=(2,) * p * v, recompute=None
    )
    said = flags(export_setting(setting, "megatron"))
    assert said["--pipeline-model-parallel-layout"][0].count("|") == p * v - 1
    size = int(said.get("--microbatch-group-size-per-virtual-pipeline-stage", [p])[0])
    assert p <= size <= m
    assert m % size == 0
    order = [
        f"{chunk * p}F{i}" for start in range(0, m, size) for chunk in range(v) for i in range(start, start + size)
    ]
    assert [str(op) for op in build("interleaved", p, m, v).ops[0] if "F" in str(op)] == order


def by_name(name, lists):
    return PipelineSetting(
        schedule_spec=ScheduleSpec(name=name, num_ranks=4, num_microbatches=8),
        partition=(3,) * lists.num_stages,
        microbatch_size=1,
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_sources_what_is_written(tmp_path):
    (tmp_path / "args.sh").write_text(export_setting(UNEVEN, "megatron"))
    line = "source ./args.sh; printf '%s\\n' \"${PIPELINE_ARGS[@]}\""
    sourced = subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, capture_output=True, text=True)
    options = flags(MEGATRON).items()
    words = [word.strip("'") for name, values in options for word in (name, *values)]
    assert sourced.stdout.split() == words


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan", "deepspeed"])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "pipedream_2bw"}, "schedule: got pipedream_2bw, which trains on stale weights, expected a flush"),
        ({"name": "avgpipe", "width": 1}, "schedule: got avgpipe, which averages several pipelines, expected one"),
        ({"name": "chimera", "partition": (3, 3, 3, 3)}, "schedule: got chimera, "),
        ({"compression": "half"}, "compression: got half, expected none"),
        ({"recompute": (0, 2)}, "recompute: got stages 0, 2, expected all or none"),
        ({"partition": (6, 6)}, "partition: got 2 stages, expected 4, the stages of 1f1b"),
        ({"partition": (12, 0, 0, 0)}, "partition: got 0, expected at least 1"),
    ],
)
def test_what_no_trainer_can_be_told_is_refused(trainer, fields, said):
    with pytest.raises(pipesched.ArgumentError) as refused:
        export_setting(changed(**fields), trainer)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


WHOLE = {"recompute": None}
AGAIN = LayerSharding(recompute="selective")
SHARED = LayerSharding(tensor=4, has_sequence=True, recompute="selective")
INTERLEAVED = {"name": "interleaved"} | WHOLE
TWO_LAYERS = {"num_ranks": 2, "partition": (1, 1)} | WHOLE
ON_ONE_RANK = {"num_ranks": 1, "partition": (12,)} | WHOLE
HANAYO = {"name": "hanayo", "partition": (1,) * 16} | WHOLE


@pytest.mark.parametrize(
    ("trainer", "fields", "said"),
    [
        ("megatron", {"name": "gpipe"}, "schedule: got gpipe, expected 1f1b or interleaved, as Megatron-LM"),
        ("megatron", INTERLEAVED | {"num_microbatches": 3, "partition": (2,) * 8}, "schedule: got interleaved with"),
        ("megatron", INTERLEAVED | {"num_chunks": 1}, "schedule: got interleaved with 4 stages"),
        ("megatron", INTERLEAVED | {"num_ranks": 1, "partition": (6, 6)}, "schedule: got interleaved with 2 stages"),
        ("megatron", TWO_LAYERS, "partition: got 2 layers, expected at least 3"),
        ("torchtitan", {"placement": "pipeline"}, "placement: got pipeline, expected data, as torchtitan"),
        ("torchtitan", {"name": "gpipe"} | ON_ONE_RANK, "schedule: got gpipe on one rank, expected 1f1b"),
        ("torchtitan", HANAYO, "schedule: got hanayo, whose rank 0 has stages 0, 7, 8, 15 of 16"),
        ("torchtitan", {"dtype": "float16"}, "dtype: got float16, expected bfloat16 or float32, as torchtitan"),
        ("torchtitan", TWO_LAYERS, "partition: got 2 layers, expected at least 3"),
        ("deepspeed", {"name": "gpipe"}, "schedule: got gpipe, expected 1f1b, as a PipelineModule of DeepSpeed"),
        ("deepspeed", {"placement": "pipeline"}, "placement: got pipeline, expected data, as DeepSpeed"),
        ("deepspeed", {"sharding": SHARED}, "tensor parallelism: got 4, expected 1, as a PipelineModule of DeepSpeed"),
        ("deepspeed", {"sharding": AGAIN} | WHOLE, "recomputed layers: got selective, expected none or full"),
        ("megatron", {"sharding": LayerSharding(data=2, zero=2)}, "zero: got 2, expected 0 or 1, as the distributed"),
        ("megatron", {"sharding": LayerSharding(recompute="alternate")}, "recomputed layers: got alternate, expected"),
        ("deepspeed", {"sharding": LayerSharding(data=2, zero=2)}, "zero: got 2, expected 0 or 1, as a PipelineModule"),
        (
            "deepspeed",
            {},
            "partition: got 4,2,2,4, expected 3,3,3,3, as DeepSpeed has no setting for the layers of each stage",
        ),
    ],
)
def test_what_one_trainer_cannot_be_told_is_refused(trainer, fields, said):
    with pytest.raises(pipesched.ArgumentError) as refused:
        export_setting(changed(**fields), trainer)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("trainer", "fields", "said"),
    [
        (
            "megatron",
            {"sharding": SHARED} | WHOLE,
            ["--tensor-model-parallel-size 4", "--sequence-parallel", "--recompute-granularity selective"],
        ),
        ("megatron", {"sharding": LayerSharding(tensor=4)} | WHOLE, ["--tensor-model-parallel-size 4"]),
        ("megatron", {"sharding": AGAIN} | WHOLE, ["--recompute-granularity selective"]),
        ("megatron", {"sharding": LayerSharding(attention="flash_2")} | WHOLE, ["--attention-backend flash"]),
        (
            "megatron",
            {"sharding": LayerSharding(context=2, expert=4, data=2, zero=1, precision="float8", recompute="full")}
            | WHOLE,
            [
                "--context-parallel-size 2",
                "--expert-model-parallel-size 4",
                "--moe-token-dispatcher-type alltoall",
                "--moe-grouped-gemm",
                "--use-distributed-optimizer",
                "--global-batch-size 64",
                "--recompute-granularity full",
                "--recompute-method uniform",
                "--recompute-num-layers 1",
                "--fp8-format hybrid",
            ],
        ),
    ],
)
def test_how_layers_are_computed_is_said_beside_the_pipeline(trainer, fields, said):
    text, plain = export_setting(changed(**fields), trainer), export_setting(changed(**WHOLE), trainer)
    more = [line.strip() for line in text.splitlines() if line not in plain.splitlines() and "#" not in line]
    assert more == said
    gpus = fields["sharding"].num_gpus
    assert f", {8 * gpus} processes: 2 x 4 ranks of 1f1b" in text
    assert (f"; {gpus} GPUs share the layers of a rank" in text) == (gpus > 1)


@pytest.mark.parametrize(
    ("fields", "flags_of_software"),
    [
        ({"zero": 1, "hides_gradients": True, "hides_weights": True}, ["overlap-grad-reduce", "overlap-param-gather"]),
        ({"hides_gradients": True, "hides_weights": True}, ["overlap-grad-reduce"]),
        ({"zero": 1, "hides_weights": True}, []),
        ({"has_graphs": True, "has_fused_loss": True}, ["cross-entropy-loss-fusion", "cuda-graph-impl local"]),
        (
            {"has_fused_gradients": False, "gradient_bytes": 2},
            ["grad-reduce-in-bf16", "no-gradient-accumulation-fusion"],
        ),
        ({"precision": "float4"}, ["fp4-format e2m1"]),
        ({"expert": 2, "data": 2, "merges_copies": True}, ["moe-flex-dispatcher-backend deepep"]),
        ({"expert": 2, "data": 2, "hides_experts": True}, ["overlap-moe-expert-parallel-comm"]),
        ({"hides_experts": True}, []),
        ({"precision": "float16"}, ["accumulate-allreduce-grads-in-fp32"]),
        ({"tensor": 2, "hides_tensor": True}, []),
        ({"tensor": 2, "has_sequence": True, "hides_tensor": True}, ["tp-comm-overlap"]),
    ],
)
def test_megatron_gets_flags_that_its_arguments_allow_together(fields, flags_of_software):
    """The conditions are from validate_args of core 0.16.1."""
    split = LayerSharding(
        **{name: fields[name] for name in ("zero", "tensor", "has_sequence", "expert", "data") if name in fields}
    )
    text, plain = (
        export_setting(changed(sharding=sharding, **WHOLE), "megatron") for sharding in (LayerSharding(**fields), split)
    )
    assert sorted(set(flags(text)) - set(flags(plain))) == [f"--{flag.split()[0]}" for flag in flags_of_software]
    assert all(f"--{flag}\n" in text for flag in flags_of_software)


def test_software_that_megatron_lacks_is_a_comment():
    sharding = LayerSharding(tensor=2, has_sequence=True, attention="flash_1", keeps_gathered=True, gradient_bytes=6)
    lines = export_setting(changed(sharding=sharding, is_estimated=True, **WHOLE), "megatron").splitlines()
    lacking = "gradient_bytes=6, attention=flash_1, keeps_gathered=True."
    assert f"# The estimate assumes, but Megatron-LM does not have: {lacking}" in lines
    assert "# GPUs older than Blackwell need CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment." in lines


def test_deepspeed_sums_bfloat16_gradients_in_float32_under_zero_1():
    sharding = LayerSharding(data=2, zero=1, gradient_bytes=6, has_fused_gradients=False, has_whole_sums=True)
    setting = changed(sharding=sharding, partition=(3,) * 4, dtype="bfloat16", is_estimated=True, **WHOLE)
    said = json.loads(export_setting(setting, "deepspeed"))
    assert said["config"]["data_types"] == {"grad_accum_dtype": "fp32"}
    assert said["config"]["zero_optimization"] == {"stage": 1}
    assert "comment" not in said
    other = replace(setting, sharding=replace(sharding, gradient_bytes=2, hides_gradients=True))
    said = json.loads(export_setting(other, "deepspeed"))
    assert said["comment"] == ["The estimate assumes, but DeepSpeed does not have: hides_gradients=True."]
    assert "data_types" not in said["config"]


@pytest.mark.parametrize(
    ("trainer", "dtype", "said"),
    [
        ("megatron", "bfloat16", ["--bf16"]),
        ("megatron", "float16", ["--fp16"]),
        *(("megatron", dtype, []) for dtype in ("float32", "not said", "")),
    ],
)
def test_a_precision_is_said_where_it_is_half(trainer, dtype, said):
    text, plain = export_setting(changed(dtype=dtype), trainer), export_setting(UNEVEN, trainer)
    more = [line.strip() for line in text.splitlines() if line not in plain.splitlines()]
    assert more == said


@pytest.mark.parametrize(("dtype", "key"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", None)])
def test_deepspeed_is_told_of_a_precision_in_its_configuration(dtype, key):
    even = {"partition": (3, 3, 3, 3), "dtype": dtype}
    config = json.loads(export_setting(changed(**even), "deepspeed"))["config"]
    assert {name: value for name, value in config.items() if "16" in name} == ({key: {"enabled": True}} if key else {})


@pytest.mark.parametrize(
    ("trainer", "line"), [("megatron", "--recompute-granularity full"), ("torchtitan", 'mode = "full"')]
)
def test_recomputation_of_stages_holds_that_of_attention(trainer, line):
    text = export_setting(changed(sharding=AGAIN), trainer)
    assert text == export_setting(UNEVEN, trainer)
    assert line in text


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan"])
def test_a_setting_that_recomputes_early_is_told_from_the_trainer_which_does_it_late(trainer):
    late = export_setting(changed(recompute_when="late"), trainer)
    assert set(export_setting(UNEVEN, trainer).splitlines()) - set(late.splitlines()) == {
        "# Recomputation runs inside the backward; the setting recomputes before the gradient has arrived."
    }


def test_a_plan_and_its_file_say_the_same(tmp_path):
    plan = Plan(
        model="gpt",
        schedule_spec=UNEVEN.schedule_spec,
        partition=UNEVEN.partition,
        microbatch_size=2,
        batch_size=32,
        compression=None,
        predicted=Predicted(1.0, 32.0),
    )
    save_json(plan, tmp_path / "plan.json")
    for source in (plan, tmp_path / "plan.json", str(tmp_path / "plan.json")):
        assert pipesched.export_setting(source, "megatron") == MEGATRON


@pytest.mark.parametrize(
    ("plan", "trainer", "said"), [(7, "megatron", "plan: got 7"), (UNEVEN, "nemo", "trainer: got 'nemo'")]
)
def test_other_arguments_are_refused(plan, trainer, said):
    with pytest.raises(pipesched.ArgumentError, match=said):
        export_setting(plan, trainer)


def test_the_best_plan_is_exported(tmp_path):
    search = pipesched.plan(
        "profiles/data/gpt-10m-epyc.json", batch_size=32, num_devices=2, depths=[2], schedules=["1f1b"]
    )
    search.save(tmp_path / "plan.json")
    text = search.export("torchtitan")
    assert text == pipesched.export_setting(tmp_path / "plan.json", "torchtitan")
    assert tomllib.loads(text)["training"]["global_batch_size"] == 32
