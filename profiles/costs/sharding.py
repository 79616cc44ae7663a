"""The split of every layer over the GPUs of a stage, and the settings of its computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pipesched.profiles import STRICT
from pipesched.schedules.common import Description

MOST_ZERO = 3
"""Highest stage of ZeRO."""
_MOST_GPUS = 65_536
"""Most GPUs of a group."""

Recomputation: TypeAlias = Literal["none", "selective", "alternate", "full"]
"""Recomputation in the backward: none; attention alone, of trainers without FlashAttention; every second product and
all kernels that only move bytes (torchtitan's selective checkpoints); every block."""
AttentionKernel: TypeAlias = Literal["unfused", "flash_1", "flash_2", "fused"]
"""Kernel of attention: a matrix of scores in memory; FlashAttention 1 or 2; the newest fused kernel of the GPU."""
MatmulPrecision: TypeAlias = Literal["float32", "bfloat16", "float16", "float8", "float4"]
"""Number type of matrix products; float8 and float4 keep weights and activations between layers in bfloat16."""
LEAST_FIT = 0.01
"""Smallest factor on the seconds of layers."""
MOST_FIT = 100.0
"""Largest factor on the seconds of layers."""
FitFactor: TypeAlias = Annotated[
    float,
    Description(
        "Seconds of every layer over their estimate, as simulate fits them to one known run.",
        least=LEAST_FIT,
        most=MOST_FIT,
    ),
]
MergesCopies: TypeAlias = Annotated[
    bool,
    Description(
        "Send a token once to each node, and to each GPU, that has several of its experts (DeepEP, HybridEP).",
        option="--merge-expert-copies",
    ),
]
HidesExperts: TypeAlias = Annotated[
    bool,
    Description(
        "Overlap the exchange of tokens between experts with the computation of another micro-batch (DualPipe).",
        option="--overlap-moe-expert-parallel-comm",
    ),
]
LINEAR_BYTES = {"float8": 1.0, "float4": 0.5625}
"""Bytes of an element of a linear layer's inputs, where they are fewer than between layers; float4 with its scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSharding:
    """The split of every layer over the GPUs of a stage, and the software that computes it.

    A stage has tensor x context x data GPUs, which are one device of a pipeline. Expert parallelism splits the experts
    over GPUs of the context and data groups. The names of the options are Megatron-LM's where it has one.
    """

    panel: ClassVar[str] = "Estimate"
    prefix: ClassVar[str] = "layer_"
    __pydantic_config__ = STRICT

    tensor: Annotated[
        int,
        Description(
            "GPUs that share every matrix (tensor parallelism).",
            option="--tensor-parallel",
            short="--tp",
            least=1,
            most=_MOST_GPUS,
        ),
    ] = 1
    has_sequence: Annotated[
        bool,
        Description(
            "Sequence parallelism: split the tokens of the activations between the matrices too.",
            option="--sequence-parallel",
            short="--sp",
        ),
    ] = False
    context: Annotated[
        int,
        Description(
            "GPUs that share the tokens of a sample.",
            option="--context-parallel",
            short="--cp",
            least=1,
            most=_MOST_GPUS,
        ),
    ] = 1
    expert: Annotated[
        int,
        Description(
            "GPUs over which the experts of a block are split.",
            option="--expert-parallel",
            short="--ep",
            least=1,
            most=_MOST_GPUS,
        ),
    ] = 1
    expert_tensor: Annotated[
        int,
        Description(
            "GPUs that share the matrices of one expert.",
            option="--expert-tensor-parallel",
            short="--etp",
            least=1,
            most=_MOST_GPUS,
        ),
    ] = 1
    data: Annotated[
        int,
        Description(
            "Copies of each stage with other samples.",
            option="--data-parallel",
            short="--dp",
            least=1,
            most=_MOST_GPUS,
        ),
    ] = 1
    zero: Annotated[
        int,
        Description(
            "Training states split over the copies: 0 none, 1 optimizer states, 2 gradients too, 3 weights too "
            "(ZeRO, arXiv:1910.02054).",
            least=0,
            most=MOST_ZERO,
        ),
    ] = 0
    precision: Annotated[MatmulPrecision, Description("Number type of matrix products.")] = "bfloat16"
    gradient_bytes: Annotated[
        int, Description("Bytes of an element of the accumulated gradients.", least=1, most=8)
    ] = 4
    recompute: Annotated[
        Recomputation,
        Description(
            "Recomputation in the backward: attention alone, every second product (torchtitan's selective), or every "
            "block.",
            option="--recompute-granularity",
        ),
    ] = "none"
    attention: Annotated[
        AttentionKernel,
        Description(
            "Kernel of attention: unfused has a matrix of scores in memory; flash_1 and flash_2 are FlashAttention; "
            "fused is the newest kernel of the GPU."
        ),
    ] = "fused"
    has_fused_gradients: Annotated[
        bool,
        Description(
            "Whether matrix products of weight gradients add to the float32 gradients themselves (Transformer Engine); "
            "autograd then keeps a placeholder of the size of the weights, one for all equal matrices.",
            option="--no-fused-gradients",
            turned_off="Add weight gradients to the float32 gradients by kernels of their own.",
        ),
    ] = True
    has_fused_pointwise: Annotated[
        bool,
        Description(
            "Whether a gated activation is one kernel, not one per operation of PyTorch, and the loss works in place.",
            option="--no-fused-pointwise",
            turned_off="Compute a gated activation, and the loss, with one kernel per operation of PyTorch.",
        ),
    ] = True
    has_fused_loss: Annotated[
        bool, Description("Read the logits once for the loss, and keep no float32 copy of them.")
    ] = False
    keeps_gathered: Annotated[
        bool,
        Description(
            "Keep the gathered inputs of products under sequence parallelism, instead of gathering them again in the "
            "backward.",
            option="--keep-gathered",
        ),
    ] = False
    has_graphs: Annotated[
        bool,
        Description(
            "Launch kernels as CUDA graphs or by a compiler, so that no kernel waits for the host.",
            option="--cuda-graphs",
        ),
    ] = False
    host_collective_s: Annotated[
        float, Description("Least time of a collective without graphs, on the host [s].", least=0, has_option=False)
    ] = 250e-6
    hides_gradients: Annotated[
        bool, Description("Overlap the sum of gradients with the last backward.", option="--overlap-grad-reduce")
    ] = False
    has_whole_sums: Annotated[
        bool,
        Description(
            "Whether every copy gets the sum of all gradients under ZeRO-1, not only of its own part (DeepSpeed).",
            has_option=False,
        ),
    ] = False
    merges_copies: MergesCopies = False
    hides_experts: HidesExperts = False
    hides_weights: Annotated[
        bool,
        Description(
            "Overlap the gathering of weights with the first forward; with ZeRO-3, with the previous layer in each "
            "pass.",
            option="--overlap-param-gather",
        ),
    ] = False
    hides_tensor: Annotated[
        bool,
        Description("Overlap collectives of the tensor group with the matrix products.", option="--tp-comm-overlap"),
    ] = False
    fit_factor: FitFactor = 1.0

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of a stage."""
        return self.tensor * self.context * self.data
