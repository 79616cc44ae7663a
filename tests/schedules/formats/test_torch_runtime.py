"""What we write runs in PyTorch's own runtime, in real processes over gloo, with the gradients of the whole model."""

import json
import re

import pytest
from safetensors.torch import load_file

from pipesched.schedules.formats.torch_csv import read_csv_text, write_csv, write_csv_comms
from pipesched.schedules.lowering import lower_for_torch
from pipesched.schedules.ops import stages_of
from tests.executor import pipelines
from tests.executor.job_sequence_ranks import run_module
from tests.schedules.formats.csv_support import halves
from tests.torch_releases import runtime_of_2_13

pytestmark = [pytest.mark.distributed, runtime_of_2_13]

MODEL = "mlp:layers=16,width=8"
ON_FOUR_RANKS = ("1f1b", "interleaved", "interleaved_zb", "zbv", "dualpipe_v", "hanayo")
BY_HAND = {
    "uneven": "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,1B0,1B1\n",
    "blocks": "0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n2F0,3F0,3B0,2B0,2F1,3F1,3B1,2B1\n",
    "swapped": "1F0,1B0,1F1,1B1\n0F0,0F1,0B0,0B1\n",
    "idle": "0F0,,0F1,0B0,,0B1\n,1F0,1B0,1F1,1B1\n",
    "split": "0F0,0F1,0I0,0B1,0W0\n1F0,1I0,1F1,1W0,1B1\n",
    "overlap": "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n",
}


def in_dialects(schedules, dialects=("compute_only", "compute_comms")):
    """Return {case: (schedule, format, text)}."""
    texts = {
        name: {"compute_only": write_csv(schedule), "compute_comms": write_csv_comms(lower_for_torch(schedule))}
        for name, schedule in schedules.items()
    }
    return {f"{name}-{form}": (schedules[name], form, texts[name][form]) for name in schedules for form in dialects}


@pytest.fixture(scope="module")
def in_torch(tmp_path_factory):
    """Run every case under PyTorch, in four processes; return {case: (its schedule, gradients, losses)}."""
    folder, listed, cases = tmp_path_factory.mktemp("torch"), [], all_cases()
    for case, (schedule, form, text) in cases.items():
        (folder / f"{case}.csv").write_bytes(text.encode())
        stages = [stages_of(row) for row in schedule.ops]
        where = 2 if len(stages) == 4 else len(listed) % 2
        listed.append((where, (case, form, MODEL, schedule.num_stages, schedule.num_microbatches, stages)))
    (folder / "cases.json").write_text(json.dumps(listed))
    run_module("tests.schedules.formats.torch_worker", 4, folder)
    return {case: (schedule, *gradients_and_losses(folder, case)) for case, (schedule, *_) in cases.items()}


def all_cases():
    """Return the whole catalogue on two ranks, lists by hand, one without REDUCE_GRAD, and some on four ranks.

    PyTorch lowers every list of the catalogue as we do (`test_torch_insertion`): it gets those with messages.
    """
    by_hand = {name: read_csv_text(text, f"{name}.csv") for name, text in BY_HAND.items()}
    cases = in_dialects(halves(2, 4)[0], ["compute_comms"]) | in_dialects(by_hand)
    schedule, form, text = cases["1f1b-compute_comms"]
    cases["unreduced"] = (schedule, form, re.sub(r",\dREDUCE_GRAD", "", text))
    four = halves(4, 8)[0]
    return cases | in_dialects({f"{name} on four": four[name] for name in ON_FOUR_RANKS})


def gradients_and_losses(folder, case):
    tensors = {}
    for path in folder.glob(f"{case}-?.safetensors"):
        tensors |= load_file(path)
    losses = [tensors.pop(key) for key in sorted(key for key in tensors if key.startswith("loss"))]
    order = sorted(tensors, key=lambda key: (*map(int, key.split(".")[:2]), key.endswith("bias")))
    return [tensors[key] for key in order], losses


def of_the_whole_model(num_microbatches):
    module, inputs, targets, loss = pipelines.whole_model(MODEL, 2 * num_microbatches)
    losses = [loss(module(x), y) for x, y in zip(inputs.split(2), targets.split(2), strict=True)]
    (sum(losses) / num_microbatches).backward()
    return [p.grad for p in module.parameters()], [x.detach() for x in losses]


def assert_equal(tensors, expected):
    """Compare each tensor by its own largest value: those of the first layers are small."""
    for tensor, other in zip(tensors, expected, strict=True):
        pipelines.assert_equal([tensor], [other])


def test_what_we_write_runs_in_pytorch_in_both_dialects(in_torch, subtests):
    assert len(in_torch) > 2 * len(BY_HAND) + 2 * len(ON_FOUR_RANKS) + 10
    for case, (schedule, gradients, losses) in in_torch.items():
        if case != "unreduced":
            with subtests.test(case):
                expected = of_the_whole_model(schedule.num_microbatches)
                assert_equal(gradients, expected[0])
                assert_equal(losses, expected[1])


def test_without_reduce_grad_pytorch_does_not_divide_by_the_micro_batches(in_torch):
    """Why `lower_for_torch` puts it in; when this fails, PyTorch divides anyway."""
    _, gradients, losses = in_torch["unreduced"]
    expected = of_the_whole_model(4)
    assert_equal(gradients, [4 * gradient for gradient in expected[0]])
    assert_equal(losses, expected[1])
