"""A pipeline in a script with a process per rank: traced modules, and one line where a script goes wrong."""

import json
import socket

import pytest
import torch

from tests.executor.job_sequence_ranks import end_of_module
from tests.workflows.pipelines.test_any_module import Branching, branching_batch, sgd
from tests.workflows.pipelines.test_any_module import pipeline as of_module
from tests.workflows.pipelines.test_pipeline import batches, pipeline

SCRIPT = """
import json, os
from pathlib import Path
import torch
import pipesched
from tests.workflows.pipelines.test_pipeline import batches, pipeline

rank, said = int(os.environ["RANK"]), {}
"""
TRACED = """
from tests.workflows.pipelines.test_any_module import Branching, branching_batch, pipeline as of_module
from tests.workflows.pipelines.test_pipeline_processes import Tied
inputs, targets = branching_batch(16)

def build():
    torch.manual_seed(0)
    return Branching().double()

for module in (build(), build):
    with of_module(module, inputs, clip_grad_norm=0.5) as pipe:
        said[type(module).__name__] = [
            [pipe.step(inputs, targets).item() for _ in range(3)],
            pipe.evaluate(inputs)["scores"].tolist(), pipe.evaluate(inputs, targets).item(),
            {key: tensor.tolist() for key, tensor in pipe.state_dict().items()}, str(pipe),
        ]
        said[type(module).__name__ + " predicted"] = pipe.predict().makespan_s
torch.manual_seed(rank)  # scripts may draw different weights: replicas get the weights of the first
with of_module(Branching().double(), inputs, schedule="chimera") as pipe:
    said["replicas"] = [pipe.step(inputs, targets).item() for _ in range(2)]
    groups = [group for optimizer in pipe.optimizers for group in optimizer.param_groups]
    said["weights"] = [parameter.tolist() for group in groups for parameter in group["params"]]
torch.manual_seed(rank)
how = {"microbatches": 2, "loss": torch.nn.functional.cross_entropy, "example": torch.arange(2)}
with of_module(Tied().double(), {}, **how) as pipe:
    said["tied"] = {name: tensor.tolist() for name, tensor in pipe.state_dict().items()}
    said["tied losses"] = [pipe.step(torch.arange(4), torch.arange(4).flip(0)).item() for _ in range(3)]
Path(f"said{rank}").write_text(json.dumps(said))
"""
REFUSED = {
    "evaluate against step": (
        "pipe = pipeline(timeout_s=5.0); pipe.step(*batch); (pipe.step if rank else pipe.evaluate)(*batch)",
        "pipeline: got different calls (rank 0: call 2, evaluate; rank 1: call 2, step), expected the same calls in",
    ),
    "one step more": (
        "pipe = pipeline(timeout_s=5.0); pipe.step(*batch); pipe.evaluate(*batch) if rank else None; pipe.step(*batch)",
        "pipeline: got different calls (rank 0: call 2, step; rank 1: call 2, evaluate), expected the same calls in",
    ),
    "an update on one": (
        "pipe = pipeline(timeout_s=5.0); pipe.step(*batch); pipe.step(*batch, update=rank == 0)",
        "pipeline: got different calls (rank 0: call 2, step; rank 1: call 2, step without update), expected the same",
    ),
    "other arguments": (
        "pipeline(seed=rank)",
        "seed: process 1 got another value than process 0; expected the same values in every process",
    ),
    "other layers": (
        "pipesched.Pipeline(torch.nn.Sequential(torch.nn.Linear(4, 4 + rank), torch.nn.Linear(4 + rank, 4)), "
        "schedule='1f1b', num_ranks=2, microbatches=2, loss=torch.nn.functional.mse_loss, "
        "optimizer=torch.optim.SGD, example=torch.ones(2, 4))",
        "layers of the model: process 1 got another value than process 0; expected the same values in",
    ),
    "other batches": (
        "pipeline().step(*next(batches(1, 12, seed=rank)))",
        "inputs: rank 1 got another batch than rank 0, expected the same batches in every process; try one seed",
    ),
}
"""Calls that differ by rank, each with the start of its error; processes meet in the last ones, before they end."""
REFUSING = """
from tests.workflows.pipelines.test_pipeline_processes import REFUSED
batch = next(batches(1, 12))
for name, (call, _) in REFUSED.items():
    try:
        exec(call)
    except (pipesched.ExecutionError, ValueError) as error:
        said[name] = str(error)
Path(f"said{rank}").write_text(json.dumps(said))
"""

pytestmark = pytest.mark.distributed


class Tied(torch.nn.Module):
    """An embedding that is the head too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.block = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.block(self.embedding(x)).tanh())


def forked(folder, script, num_processes=2):
    """Run a script in processes with the environment of torchrun; return their exit codes, and all that they print."""
    (folder / "script.py").write_text(SCRIPT + script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    codes, printed = end_of_module("tests.workflows.pipelines.script_ranks", num_processes, folder, **meet)
    return codes, "".join(printed)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return the output of each of two processes about its traced modules."""
    folder = tmp_path_factory.mktemp("traced")
    codes, printed = forked(folder, TRACED)
    assert codes == [0, 0], printed
    first, second = (json.loads((folder / f"said{rank}").read_text()) for rank in range(2))
    assert first == second
    return first


def test_a_traced_module_in_processes_is_the_same_as_in_one(traced):
    inputs, targets = branching_batch(16)

    def build():
        torch.manual_seed(0)
        return Branching().double()

    with of_module(build, inputs, clip_grad_norm=0.5) as pipe:
        drawn = [pipe.step(inputs, targets).item() for _ in range(3)]
    with of_module(build(), inputs, clip_grad_norm=0.5) as pipe:
        losses = [pipe.step(inputs, targets).item() for _ in range(3)]
        scores, loss, state = pipe.evaluate(inputs)["scores"], pipe.evaluate(inputs, targets), pipe.state_dict()
    told_losses, told_scores, told_loss, told_state, told_table = traced["Branching"]
    assert told_losses == pytest.approx(losses, rel=1e-12)
    torch.testing.assert_close(torch.tensor(told_scores, dtype=torch.float64), scores, rtol=0, atol=1e-12)
    assert told_loss == pytest.approx(loss.item(), rel=1e-12)
    assert list(told_state) == list(state)
    assert told_table == str(pipe)
    assert traced["function"][0] == pytest.approx(drawn, rel=1e-12)
    assert traced["Branching predicted"] > 0


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """Return the errors of two processes by case; a pipeline follows each refused one."""
    folder = tmp_path_factory.mktemp("refused")
    codes, printed = forked(folder, REFUSING)
    assert codes == [0, 0], printed
    return [json.loads((folder / f"said{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", REFUSED)
def test_calls_that_differ_end_in_one_line_in_every_process(case, refusals):
    for said in refusals:
        assert said[case].startswith(REFUSED[case][1])
        assert "\n" not in said[case]


def test_another_number_of_processes_is_refused(tmp_path):
    _, printed = forked(tmp_path, "pipeline()", 3)
    assert "schedule 1f1b has 2 ranks, but 3 processes were started" in printed


def test_stages_that_share_a_weight_begin_with_equal_ones_though_scripts_have_drawn_others(traced):
    module = Tied().double()
    module.load_state_dict(
        {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in traced["tied"].items()}
    )
    optimizer, losses = sgd(module.parameters()), []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(torch.nn.functional.cross_entropy(module(torch.arange(4)), torch.arange(4).flip(0)))
        losses[-1].backward()
        optimizer.step()
    assert traced["tied losses"] == pytest.approx([loss.item() for loss in losses], rel=1e-12)


def test_one_process_of_torchrun_runs_all_ranks(tmp_path):
    _, printed = forked(tmp_path, "print(pipeline().step(*next(batches(1, 12))).item())", 1)
    with pipeline() as pipe:
        assert printed.split()[-1] == str(pipe.step(*next(batches(1, 12))).item())
