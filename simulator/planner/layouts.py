"""The layouts of a transformer on equal GPUs: every split of the model and of a batch that the numbers allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from pipesched.profiles import OptimizerName, ProfileError
from pipesched.profiles.clusters import Cluster, Device, Gpu
from pipesched.profiles.costs import LayerSharding, Profile, Recomputation
from pipesched.profiles.inside_stage import Fabric, ModelShape, estimated_profile, message_link, require_divided
from pipesched.schedules.builders import find
from pipesched.simulator.planner.stage_layout import layout_of, refusal_of
from pipesched.simulator.search import Setting, divisors

LAYOUT_SCHEDULES = ("1f1b", "interleaved", "zb_h1")
"""The schedules of a transformer that are tried unless others are named."""
LAYOUT_CHUNKS = (2, 3, 4, 6, 8)
"""Stages per rank of schedules with several, unless others are given."""
LAYOUT_SIZES = (1, 2, 4, 8, 16, 32)
"""Samples of a micro-batch, unless others are given."""
_FEWEST_TOKENS = 2048
"""Fewest tokens of a sample on a GPU of a context group, unless its sizes are given."""
_SUMMED_IN_EACH = 2
"""Stage of ZeRO that sums the gradients of each micro-batch."""


@dataclass(frozen=True, slots=True, repr=False)
class TransformerLayout(Setting):
    """A pipeline, and the split of every layer over the GPUs of a stage.

    Attributes:
        sharding: The split; its data copies are the width of the setting.
    """

    sharding: LayerSharding = LayerSharding()  # noqa: RUF009 -- frozen

    @property
    def order(self) -> Setting:
        """The lists of one copy: the costs contain all exchanges with the other copies."""
        return Setting(self.schedule, self.num_ranks, self.num_microbatches, self.num_chunks)

    def __str__(self) -> str:
        split = self.sharding
        sizes = {"pp": self.num_ranks, "v": self.num_chunks, "tp": split.tensor, "cp": split.context,
                 "ep": split.expert, "dp": split.data, "zero": split.zero, "mbs": self.size}  # fmt: skip
        shown = [f"{name}{size}" for name, size in sizes.items() if size is not None]
        return " ".join([*shown, f"recompute {split.recompute}", self.schedule])


class Form(NamedTuple):
    """A schedule with its ranks and chunks, without the number of micro-batches."""

    schedule: str
    num_ranks: int
    num_chunks: int | None

    @property
    def setting(self) -> Setting:
        """The setting with a few micro-batches, which show its stages."""
        return Setting(self.schedule, self.num_ranks, 2 * self.num_ranks, self.num_chunks)


@dataclass(frozen=True, slots=True)
class LayoutRequest:
    """A transformer, equal GPUs, a batch, and the options to try.

    Attributes:
        shape: The model.
        gpu: The GPU.
        fabric: The links of a GPU.
        num_gpus: Number of GPUs.
        memory_bytes: Memory of a GPU that a layout may fill, or None without limit.
        batch_size: Samples of an optimizer step.
        base: The settings of the computation that all layouts share; sequence parallelism is used where it can be,
            if it is set.
        optimizer: The optimizer.
        schedules: Names of schedules in the catalogue.
        depths: Ranks of one copy of the pipeline, or None for any.
        chunks: Stages per rank of schedules that take chunks.
        tensors: GPUs of tensor parallelism, or None for any in a node.
        contexts: GPUs of context parallelism, or None for any with at least 2,048 tokens of a sample each.
        experts: GPUs of expert parallelism, or None for any.
        zeros: Stages of ZeRO. Stage 2 sums gradients after each micro-batch, and is tried with one micro-batch alone.
        sizes: Samples of a micro-batch.
        recomputes: Recomputation; selective recomputation is tried only if attention keeps a matrix of scores.
        refusal: Returns why a layout with its partition is not wanted, or None; another process may call it.
        is_uniform: Whether stages share the layers evenly, embedding and head included, as DeepSpeed deals them out.
        compiles_split: Whether layers are compiled also in schedules that split the backward; PyTorch refuses it.
    """

    shape: ModelShape
    gpu: Gpu
    fabric: Fabric
    num_gpus: int
    memory_bytes: int | None
    batch_size: int
    base: LayerSharding = LayerSharding(has_sequence=True)  # noqa: RUF009 -- frozen
    optimizer: OptimizerName = "adamw"
    schedules: tuple[str, ...] = LAYOUT_SCHEDULES
    depths: tuple[int, ...] | None = None
    chunks: tuple[int, ...] = LAYOUT_CHUNKS
    tensors: tuple[int, ...] | None = None
    contexts: tuple[int, ...] | None = None
    experts: tuple[int, ...] | None = None
    zeros: tuple[int, ...] = (0, 1, 2, 3)
    sizes: tuple[int, ...] = LAYOUT_SIZES
    recomputes: tuple[Recomputation, ...] = ("none", "selective", "full")
    refusal: Callable[[Setting], str | None] | None = None
    is_uniform: bool = False
    compiles_split: bool = True

    def profile(self, sharding: LayerSharding, size: int) -> Profile:
        """Return the estimated profile of one GPU for micro-batches of `size` samples."""
        return estimated_profile(self.shape, sharding, self.gpu, self.fabric, [size], self.optimizer)

    def pipeline(self, depth: int) -> Cluster:
        """Return one GPU of each stage; the GPUs of a stage are side by side, as in Megatron-LM."""
        stride = self.num_gpus // depth
        devices = tuple(Device(node=rank * stride // self.fabric.node_gpus) for rank in range(depth))
        intra, inter = self.fabric.intra, self.fabric.inter
        inside, between = (message_link(intra, inter, is_inside=is_inside) for is_inside in (True, False))
        return Cluster(devices, inside, between)


def layouts(request: LayoutRequest) -> Iterator[TransformerLayout]:
    """Yield every layout once, without a partition.

    Tensor x context x data GPUs hold a stage, and each data copy takes its share of the batch in micro-batches. The
    split divides the model, and no stage is empty. Layouts with equal or worse results are left out. One rank gets 1F1B
    alone. Without data copies only the first stage of ZeRO is tried. A context group that processes several samples is
    left out, because smaller groups with more copies can process one sample each.
    """
    for depth in _chosen(divisors(request.num_gpus), request.depths):
        forms = [*_forms(request, depth)]
        uncompiled = () if request.compiles_split else [form for form in forms if layout_of(form.setting).splits]
        for split in _splits(request, request.num_gpus // depth) if forms else ():
            share = request.batch_size // split.data
            eager = replace(split, has_graphs=False, has_fused_pointwise=False)
            for size, form in product(request.sizes, forms):
                count = share // size
                if share % size or (split.zero == _SUMMED_IN_EACH and count > 1) or _is_wasteful(request, split, size):
                    continue
                used = eager if form in uncompiled else split
                yield TransformerLayout(
                    form.schedule, depth, count, form.num_chunks, microbatch_size=size, width=split.data, sharding=used
                )


def undivided(request: LayoutRequest) -> Iterator[tuple[int, LayerSharding]]:
    """Yield the depths and splits that are left out because the batch or the model does not divide."""
    for depth in _chosen(divisors(request.num_gpus), request.depths):
        for split in _groups(request, request.num_gpus // depth):
            if not _is_divided(request, split):
                yield depth, split


def _is_wasteful(request: LayoutRequest, split: LayerSharding, size: int) -> bool:
    """Whether a better layout exists: half the context group, twice the copies, and half the samples per copy."""
    return (
        split.context % 2 == size % 2 == 0
        and size // 2 in request.sizes
        and (request.contexts is None or split.context // 2 in request.contexts)
    )


def no_layout(request: LayoutRequest) -> ProfileError:
    """Return why no layout exists: the GPUs, the batch or the numbers of the model do not divide."""
    experts = request.shape.experts
    divides = f"a divisor of the {request.num_gpus} GPUs"
    num_experts = 1 if experts is None else experts.count
    of_experts = f"a divisor of the {num_experts} experts" if experts else "1, as the model has no experts"
    for name, given, whole, expected in (
        ("depths", request.depths, request.num_gpus, divides),
        ("tensor", request.tensors, request.num_gpus, divides),
        ("context", request.contexts, request.num_gpus, divides),
        ("expert", request.experts, num_experts, of_experts),
    ):
        if given is not None and not _chosen(divisors(whole), given):
            near = max(count for count in divisors(whole) if count <= max(given))
            got = ",".join(map(str, given))
            return ProfileError(f"plan: got `{name}={got}`, expected {expected}; try `{name}={near}`")
    counts = f"heads={request.shape.heads}" + (f", experts={experts.count}" if experts else "")
    return ProfileError(
        f"plan: got no layout of {request.shape.name} for {request.num_gpus} GPUs and a batch of {request.batch_size} "
        f"samples, expected a layout whose numbers divide {counts}, the {request.shape.layers} blocks, the GPUs and "
        "the batch; try another batch or number of GPUs, or fix fewer numbers of GPUs"
    )


def _forms(request: LayoutRequest, depth: int) -> Iterator[Form]:
    """Yield the schedules of a depth with no more stages than layers, embedding and head included."""
    for name in request.schedules if depth > 1 else ("1f1b",):
        entry = find(name)
        for chunks in request.chunks if entry.traits.takes_chunks else (None,):
            form = Form(entry.name, depth, chunks)
            num_stages = depth * (chunks or entry.chunks)
            if num_stages <= request.shape.layers + 2 and refusal_of(form.setting) is None:
                yield form


def _splits(request: LayoutRequest, num_gpus: int) -> Iterator[LayerSharding]:
    """Yield the splits of every layer over the GPUs of a stage that divide the model and the batch."""
    recomputes = [how for how in request.recomputes if how != "selective" or request.base.attention == "unfused"]
    for split in _groups(request, num_gpus):
        if _is_divided(request, split):
            zeros = request.zeros if split.data * split.context > 1 else request.zeros[:1]
            for zero, recompute in product(zeros, recomputes):
                yield replace(split, zero=zero, recompute=recompute)


def _groups(request: LayoutRequest, num_gpus: int) -> Iterator[LayerSharding]:
    """Yield every tensor, context, expert and data group of the GPUs of a stage."""
    of_experts = (1,) if request.shape.experts is None else divisors(request.shape.experts.count)
    tensors, contexts = request.tensors, request.contexts
    if tensors is None:
        tensors = divisors(request.fabric.node_gpus)
    if contexts is None:
        contexts = tuple(range(1, 1 + max(1, request.shape.sequence // _FEWEST_TOKENS)))
    for tensor in _chosen(divisors(num_gpus), tensors):
        for context in _chosen(divisors(num_gpus // tensor), contexts):
            data = num_gpus // tensor // context
            for expert in _chosen(of_experts, request.experts):
                yield replace(
                    request.base,
                    tensor=tensor,
                    context=context,
                    expert=expert,
                    data=data,
                    has_sequence=request.base.has_sequence and tensor > 1,
                )


def _is_divided(request: LayoutRequest, split: LayerSharding) -> bool:
    """Whether `split` divides the batch and the model without a remainder."""
    if request.batch_size % split.data:
        return False
    try:
        require_divided(request.shape, split)
    except ProfileError:
        return False
    return True


def _chosen(possible: tuple[int, ...], wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(count for count in possible if wanted is None or count in wanted)
