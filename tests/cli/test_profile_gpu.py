"""`pipesched profile MODEL --gpu`: costs without a machine, and what takes them."""

import json
from dataclasses import asdict

import pytest

from pipesched.profiles.costs import LayerSharding

GPT = "gpt:layers=6,width=1024,heads=16,context=512,vocab=1024"


def test_an_estimate_is_shown_written_and_planned_with(pipesched, folder):
    answer = pipesched(f"profile {GPT} --gpu h100 --tensor-parallel 2 --out gpt.json")
    assert (answer.code, answer.err) == (0, "")
    assert "h100, estimated" in answer.out
    written = (folder / "gpt.json").read_text()
    provenance = json.loads(written)["provenance"]
    assert (provenance["optimizer"], provenance["repeats"]) == ("adamw", 0)
    assert [layer["name"] for layer in json.loads(written)["layers"]][:2] == ["embedding", "block 0"]

    planned = pipesched("plan gpt.json -b 8 --devices 4 --memory-limit 80GB --out plan.json")
    assert (planned.code, planned.err) == (0, "")
    assert "estimated" in json.loads((folder / "plan.json").read_text())["origin"]
    simulated = pipesched("simulate -s zb_h1 -p 2 -m 4 --profile gpt.json")
    assert (simulated.code, simulated.err) == (0, "")


def test_how_layers_are_computed_goes_with_the_plan_to_its_export(pipesched, folder):
    shared = "--tensor-parallel 4 --sequence-parallel --recompute-granularity selective"
    pipesched(f"profile {GPT} --gpu h100 {shared} --out gpt.json")
    pipesched("plan gpt.json -b 8 --devices 4 --depth 2 -s 1f1b --recompute no --out plan.json")
    expected = asdict(LayerSharding(tensor=4, has_sequence=True, recompute="selective"))
    assert json.loads((folder / "gpt.json").read_text())["provenance"]["sharding"] == expected
    assert json.loads((folder / "plan.json").read_text())["sharding"] == expected
    said = pipesched("export megatron --plan plan.json").out
    assert said.startswith("# Megatron-LM, 16 processes: 2 x 2 ranks of 1f1b; 4 GPUs share the layers of a rank\n")
    for line in (
        "--tensor-model-parallel-size 4",
        "--sequence-parallel",
        "--recompute-granularity selective",
        "--bf16",
    ):
        assert f"    {line}\n" in said
    refused = pipesched("export deepspeed --plan plan.json")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "tensor parallelism: got 4, expected 1" in refused.err


@pytest.mark.parametrize(
    ("tensor", "gpus", "most"), [(4, "", 2), (4, "--gpus 3", 2), (4, "--gpus 2", None), (16, "--gpus 2", 1)]
)
def test_a_node_has_no_more_devices_than_gpus_for_them(pipesched, tensor, gpus, most):
    pipesched(f"profile {GPT} --gpu h100 --tensor-parallel {tensor} --out gpt.json")
    answer = pipesched(f"plan gpt.json -b 8 -s 1f1b --nodes 2 --machine dgx-h100 {gpus} --depth 2 --top 1")
    if most is None:
        assert (answer.code, answer.err) == (0, "")
        assert "a device is 4 GPUs that share its layers: 4 devices are 16 GPUs" in answer.out
        return
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert f"devices of dgx-h100, a node of 8 GPUs, expected at most {most}, as each device of the " in answer.err
