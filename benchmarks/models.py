"""Gradients of eight models of others in a pipeline, beside the whole module, in float64.

    python benchmarks/models.py [--models GPT-2,T5] [--ranks 2,4] [--out benchmarks/results/models.md]

Each model of a few blocks makes one step of plain gradient descent under every synchronous schedule of the catalogue.
The difference of its weights before and after the step is the learning rate times its gradient. The oracle is the
plain module, which runs one micro-batch after the other. All ranks live in one process, or each in a process of its
own over gloo.

A second table has the peak memory of each of four processes that build a GPT-2 of 300 M parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rank_group import be_rank, run_ranks
from report import arguments_of, provenance, show
from torch import Tensor, nn
from torch.nn import functional

from pipesched import Pipeline
from pipesched.profiles.models import Model, trace_model
from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.builders import CATALOGUE, build

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SYNCHRONOUS = [
    name for name, entry in CATALOGUE.items() if not entry.traits.is_asynchronous and not entry.traits.averages
]
NUM_MICROBATCHES = {2: 4, 4: 8}
SAMPLES = 2
VOCAB = 64
LEARNING_RATE = 2.0**40
"""Large, so that the difference of the weights has the digits of a small gradient, as of the first of 14 LSTMs."""
LIMIT = 1e-10
"""Largest error of a gradient, relative to its largest element."""
MEMORY_RANKS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """A model with a batch of a given number of samples.

    Attributes:
        make: Makes the module.
        batch: Number of samples -> (inputs by keyword, targets).
        loss: (output of the module, targets) -> the mean over the samples.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int], tuple[dict[str, Tensor], Tensor]]
    loss: Callable[[Any, Tensor], Tensor]


class LstmTagger(nn.Module):
    """An embedding, some LSTMs, and a head that scores every token."""

    def __init__(self, layers: int, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.lstms = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, VOCAB)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map (B, T) to (B, T, V)."""
        x = self.embedding(input_ids)
        for lstm in self.lstms:
            x = lstm(x)[0]
        scores: Tensor = self.head(x)
        return scores


def next_token_loss(outputs: Any, targets: Tensor) -> Tensor:
    scores = outputs if isinstance(outputs, Tensor) else outputs.logits
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


def class_loss(outputs: Any, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.logits, targets)


def tokens(num_samples: int, length: int = 8) -> Tensor:
    return torch.randint(0, VOCAB, (num_samples, length))


def text(num_samples: int) -> tuple[dict[str, Tensor], Tensor]:
    return {"input_ids": tokens(num_samples)}, tokens(num_samples)


def padded_text(num_samples: int) -> tuple[dict[str, Tensor], Tensor]:
    lengths = torch.randint(3, 9, (num_samples, 1))
    mask = (torch.arange(8) < lengths).long()
    return {"input_ids": tokens(num_samples), "attention_mask": mask}, tokens(num_samples)


def two_texts(num_samples: int) -> tuple[dict[str, Tensor], Tensor]:
    return {"input_ids": tokens(num_samples), "decoder_input_ids": tokens(num_samples)}, tokens(num_samples)


def images(num_samples: int) -> tuple[dict[str, Tensor], Tensor]:
    return {"pixel_values": torch.randn(num_samples, 3, 32, 32)}, torch.randint(0, 5, (num_samples,))


def cases(blocks: int = 14) -> dict[str, Case]:
    """Return the eight models by name, all but ResNet-50 of a number of blocks; transformers makes seven of them."""
    import transformers as hf

    hf.logging.set_verbosity_error()
    words = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    block = {"num_hidden_layers": blocks, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    sparse = {
        **block,
        "num_key_value_heads": 1,
        "num_local_experts": 4,
        "use_cache": False,
        "experts_implementation": "batched_mm",
    }  # the default has no float64

    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    picture = {"image_size": 32, "patch_size": 8, "num_labels": 5}

    def made(model: str, config: str, **arguments: Any) -> Callable[[], nn.Module]:
        return lambda: getattr(hf, model)(getattr(hf, config)(**arguments))

    gpt2 = made("GPT2LMHeadModel", "GPT2Config", n_layer=blocks, n_embd=16, n_head=2, n_positions=16, use_cache=False,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **words)  # fmt: skip
    llama = made("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=1, use_cache=False, **block, **words)
    bert = made("BertForMaskedLM", "BertConfig", **block, **no_dropout, **words)
    t5 = made("T5ForConditionalGeneration", "T5Config", num_layers=blocks // 2, d_model=16, d_ff=32, d_kv=8,
              num_heads=2, dropout_rate=0.0, use_cache=False, decoder_start_token_id=0, **words)  # fmt: skip
    vit = made("ViTForImageClassification", "ViTConfig", **block, **no_dropout, **picture)
    resnet = made("ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16, 24, 32],
                  depths=[3, 4, 6, 3], num_labels=5)  # fmt: skip
    mixtral = made("MixtralForCausalLM", "MixtralConfig", **sparse, **words)
    return {
        "GPT-2": Case(gpt2, text, next_token_loss),
        "Llama": Case(llama, text, next_token_loss),
        "BERT": Case(bert, padded_text, next_token_loss),
        "T5": Case(t5, two_texts, next_token_loss),
        "ViT": Case(vit, images, class_loss),
        "ResNet-50": Case(resnet, images, class_loss),
        "Mixtral": Case(mixtral, text, next_token_loss),
        "LSTM": Case(partial(LstmTagger, blocks), text, next_token_loss),
    }


def schedule_of(name: str, num_ranks: int) -> Schedule | None:
    """Return a schedule, with two stages a rank if it takes several; None if the ranks or micro-batches do not fit."""
    chunks = {"num_chunks": 2} if CATALOGUE[name].traits.takes_chunks else {}
    with suppress(ScheduleError):
        return build(name, num_ranks, NUM_MICROBATCHES[num_ranks], **chunks)
    return None


def plain_gradients(case: Case, module: nn.Module, num_microbatches: int) -> dict[str, Tensor]:
    """Return the gradients of the mean loss over the micro-batches, by name; no pipeline is involved."""
    inputs, targets = data_of(case, num_microbatches)
    for number in range(num_microbatches):
        samples = slice(number * SAMPLES, (number + 1) * SAMPLES)
        outputs = module(**{name: tensor[samples] for name, tensor in inputs.items()})
        torch.autograd.backward(case.loss(outputs, targets[samples]) / num_microbatches)
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def data_of(case: Case, num_microbatches: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return the same batch in every process."""
    torch.manual_seed(1)
    inputs, targets = case.batch(SAMPLES * num_microbatches)
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}, targets


def module_of(case: Case) -> nn.Module:
    """Return the module with the same weights in every process."""
    torch.manual_seed(0)
    return case.make().double()


@dataclass(frozen=True, slots=True)
class Oracle:
    """A traced model, and the gradients of the plain module for some micro-batches.

    Attributes:
        inputs: Inputs of the batch.
        targets: Targets of the batch.
        weights: State of the module before the step.
        gradients: Gradients by the names of parameters.
    """

    model: Model
    inputs: dict[str, Tensor]
    targets: Tensor
    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]

    @staticmethod
    def of(case: Case, num_microbatches: int) -> Oracle:
        inputs, targets = data_of(case, num_microbatches)
        module = module_of(case)
        weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        gradients = plain_gradients(case, module, num_microbatches)
        example = {name: tensor[:SAMPLES] for name, tensor in inputs.items()}
        model = trace_model("model", partial(module_of, case), case.loss, None, example=example)
        return Oracle(model, inputs, targets, weights, gradients)

    def largest_error(self, schedule: Schedule) -> float:
        """Return the largest error of a gradient's element, relative to the largest element of this gradient."""
        example = {name: tensor[:SAMPLES] for name, tensor in self.inputs.items()}
        optimizer = partial(torch.optim.SGD, lr=LEARNING_RATE)
        with Pipeline(self.model, schedule=schedule, optimizer=optimizer, example=example) as pipe:
            pipe.load_state_dict(self.weights)
            pipe.step(self.inputs, self.targets)
            after = pipe.state_dict()
        return max(
            float(((self.weights[name] - after[name]) / LEARNING_RATE - gradient).abs().max() / gradient.abs().max())
            for name, gradient in self.gradients.items()
        )


def errors_of(name: str, num_ranks: int) -> Iterator[tuple[str, float]]:
    """Yield (schedule, largest error) of every schedule that takes these ranks."""
    oracle = Oracle.of(cases()[name], NUM_MICROBATCHES[num_ranks])
    for schedule in SYNCHRONOUS:
        lists = schedule_of(schedule, num_ranks)
        if lists is not None:
            yield schedule, oracle.largest_error(lists)


def in_processes(folder: Path, num_ranks: int, *arguments: str) -> None:
    """Run this program in a process per rank, which write to `folder`."""
    run_ranks([__file__, *arguments, "--ranks", str(num_ranks), "--member", str(folder)], num_ranks)


def work_of_rank(folder: Path, name: str | None, num_ranks: int, rank: int) -> None:
    """Run all cases, or build a large model without any; rank 0 writes the errors."""
    if name is None:
        (folder / f"memory{rank}.json").write_text(json.dumps(build_big(num_ranks)))
        return
    rows = [*errors_of(name, num_ranks)]
    if rank == 0:
        (folder / "errors.json").write_text(json.dumps(rows))


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far [bytes]; getrusage counts the parent's, too."""
    (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kibibytes) * 1024


def build_big(num_ranks: int) -> tuple[int, int]:
    """Build a stage of the large GPT-2; return the bytes of its weights, and the growth of this process' peak memory.

    A small GPT-2 is built before, so that imports do not count.
    """
    stage_bytes(4, 64, num_ranks)
    before = peak_bytes()
    return stage_bytes(20, 1024, num_ranks), peak_bytes() - before


def stage_bytes(layers: int, width: int, num_ranks: int) -> int:
    """Build this rank's stage of a GPT-2, and return the bytes of its weights."""
    import transformers as hf

    config = hf.GPT2Config(n_layer=layers, n_embd=width, n_head=16, use_cache=False)
    with Pipeline(
        partial(hf.GPT2LMHeadModel, config), schedule="1f1b", num_ranks=num_ranks, microbatches=num_ranks,
        loss=next_token_loss, optimizer=partial(torch.optim.SGD, lr=0.1), example={"input_ids": tokens(1)},
    ) as pipe:  # fmt: skip
        groups = [group for optimizer in pipe.optimizers for group in optimizer.param_groups]
        return sum(parameter.nbytes for group in groups for parameter in group["params"])


def report(names: Sequence[str], all_ranks: Sequence[int]) -> Iterator[str]:
    """Yield the lines of the page."""
    load = os.getloadavg()[0]
    yield "# Models of others"
    yield ""
    yield from provenance("models.py", load, f"transformers {version('transformers')}, float64")
    yield ""
    yield "Each cell: schedules whose gradients equal the plain module's to 1e-10, of all synchronous schedules that"
    yield "take these ranks; and the largest error of a gradient, relative to its largest element."
    yield ""
    places = [(ranks, how) for ranks in all_ranks for how in ("one process", "gloo")]
    yield f"| model | {' | '.join(f'{ranks} ranks, {how}' for ranks, how in places)} |"
    yield "|---" * (1 + len(places)) + "|"
    for name in names:
        cells = []
        for ranks, how in places:
            if how == "gloo":
                with tempfile.TemporaryDirectory() as folder:
                    in_processes(Path(folder), ranks, "--models", name)
                    rows = json.loads((Path(folder) / "errors.json").read_text())
            else:
                rows = [*errors_of(name, ranks)]
            errors = [error for _, error in rows]
            cells.append(f"{sum(error <= LIMIT for error in errors)} of {len(errors)}, {max(errors):.0e}")
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield f"GPT-2 of 300 M parameters on {MEMORY_RANKS} processes: growth of a process' peak memory while it builds its"
    yield "stage from a factory, after a small one, over the bytes of the stage's weights."
    yield ""
    yield "| rank | weights | growth of the peak | ratio |"
    yield "|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        in_processes(Path(folder), MEMORY_RANKS)
        for rank in range(MEMORY_RANKS):
            share, peak = json.loads((Path(folder) / f"memory{rank}.json").read_text())
            yield f"| {rank} | {share / 2**20:.0f} MiB | {peak / 2**20:.0f} MiB | {peak / share:.2f} |"


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--models", default=None, help="names, separated by commas (default: all)")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks (default: 2,4)")
    parser.add_argument("--member", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    all_ranks = [int(number) for number in arguments.ranks.split(",")]
    torch.set_num_threads(1)
    if arguments.member is not None:
        be_rank(partial(work_of_rank, arguments.member, arguments.models, all_ranks[0]))
    show(report(arguments.models.split(",") if arguments.models else [*cases()], all_ranks), arguments.out)


if __name__ == "__main__":
    main()
