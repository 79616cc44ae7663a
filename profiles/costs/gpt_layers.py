"""Work and bytes of a GPT's layers on one of the GPUs that share each layer, from the shape of the GPT.

Symbols: b samples, s context, h width, a heads, V vocabulary, t GPUs that share every layer as in Megatron-LM. The
matrix products of a block take these floating-point operations (arXiv:2401.10241, table 1):

    forward F      sbh (24 h + 4 s) / t
    input pass I   sbh (24 h + 8 s) / t
    weight pass W  sbh 24 h / t          attention has no weights

The products of the head take 2 sbhV / t in each pass. With 2-byte numbers, a block keeps these bytes
(arXiv:2205.05198, equations 1, 2, 4 and table 2):

    one GPU                                   sbh (34 + 5 as/h)
    t GPUs                                    sbh (10 + 24/t + 5 as/(ht))
    t GPUs, sequence parallelism              sbh (34/t + 5 as/(ht))
    any of these, attention recomputed        without the term in as/h
    any of these, FlashAttention              4 a/(ht) in place of this term, a float32 for each row of a matrix

FlashAttention (arXiv:2307.08691, section 3.1) takes five products in I instead of four, which adds 2 s to the table. It
moves only the inputs and outputs of attention, and no matrix of size s^2.

All other operations only move bytes. They are fused as in Megatron-LM (arXiv:2104.04473, section 4.2): bias and GELU;
bias, dropout and residual sum; scale, mask and softmax. Dropout also moves its mask, of one byte per number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from pipesched.profiles import FLOAT32_BYTES, Dtype, ProfileError, element_bytes
from pipesched.profiles.clusters import Link, all_reduce, flat
from pipesched.profiles.costs.provenance import LayerExecution

_MOST_LAYERS, _MOST = 10_000, 2**31 - 1
"""Largest number of layers, and largest other number; larger numbers are typing errors."""


@dataclass(frozen=True, slots=True)
class GptShape:
    """The arguments of the built-in model ``gpt`` that change its costs.

    Attributes:
        layers: Blocks, besides the embedding and the head.
        width: Width of the activations between layers.
        heads: Number of attention heads.
        context: Tokens of a sample.
        vocab: Size of the vocabulary.
    """

    layers: int = 8
    width: int = 320
    heads: int = 8
    context: int = 128
    vocab: int = 256

    @property
    def name(self) -> str:
        """The model's name, as `resolve_model` reads it."""
        return "gpt:" + ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    def require_possible(self, name: str) -> None:
        """Refuse invalid numbers.

        Args:
            name: The model's name, for the message.

        Raises:
            ProfileError: A number is below 1 or too large, or the heads do not divide the width.
        """
        for field in fields(self):
            got = getattr(self, field.name)
            most = _MOST_LAYERS if field.name == "layers" else _MOST
            if got < 1:
                raise ProfileError(f"model {name}: {field.name}: got {got}, expected at least 1; raise it")
            if got > most:
                raise ProfileError(f"model {name}: {field.name}: got {got}, expected at most {most}; lower it")
        if self.width % self.heads:
            raise ProfileError(
                f"model {name}: width: got {self.width}, expected a multiple of heads={self.heads}; "
                f"try width={-(-self.width // self.heads) * self.heads}"
            )


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operation on a GPU.

    Attributes:
        flops: Floating-point operations of products of matrices, two per multiplication.
        num_bytes: Bytes that the operation reads from the GPU's memory and writes there.
    """

    flops: int
    num_bytes: int


def matrix_product(rows: int, inner: int, columns: int, element_bytes: int, count: int = 1) -> Kernel:
    """Return the kernel of `count` products of matrices (rows, inner) and (inner, columns); each number moves once."""
    numbers = rows * inner + inner * columns + rows * columns
    return Kernel(2 * count * rows * inner * columns, count * element_bytes * numbers)


@dataclass(frozen=True, slots=True)
class LayerPass:
    """One pass of a layer on one GPU, one operation after the other.

    Attributes:
        kernels: The operations.
        reduced_bytes: Bytes of each all-reduce over the GPUs that share the layer.
    """

    kernels: tuple[Kernel, ...] = ()
    reduced_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limits of a GPU.

    Attributes:
        flops_per_s: Throughput of matrix products [floating-point operations per second].
        bytes_per_s: Bandwidth of the memory.
        link_bytes_per_s: Bandwidth to each of the other GPUs that share a layer, each way.
        num_gpus: Number of GPUs that share a layer.
    """

    flops_per_s: float
    bytes_per_s: float
    link_bytes_per_s: float = math.inf
    num_gpus: int = 1

    def kernel_s(self, kernel: Kernel) -> float:
        """Return the seconds of one operation."""
        return max(kernel.flops / self.flops_per_s, kernel.num_bytes / self.bytes_per_s)

    def pass_s(self, layer_pass: LayerPass) -> float:
        """Return the seconds of a pass; nothing overlaps, and all-reduces have no latency."""
        cluster = flat(self.num_gpus, Link(bandwidth_bytes_per_s=self.link_bytes_per_s))
        reductions = (all_reduce(count, range(self.num_gpus), cluster) for count in layer_pass.reduced_bytes)
        return math.fsum([*map(self.kernel_s, layer_pass.kernels), *(reduction.seconds for reduction in reductions)])

    def moved_s(self, num_bytes: int) -> float:
        """Return the seconds to read or write `num_bytes` bytes."""
        return num_bytes / self.bytes_per_s


_TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GptExecution(LayerExecution):
    """The settings of the computation of a GPT's layers.

    Attributes:
        dtype: Number type of weights and activations.
    """

    dtype: Dtype = "bfloat16"


@dataclass(frozen=True, slots=True)
class GptLayer:
    """One layer on one micro-batch, on one of the GPUs that share it.

    Attributes:
        parameters: The number of parameters.
        backward_input: I; empty for the embedding, whose input has no gradient.
        input_bytes: Bytes of the input.
        output_bytes: Bytes of the output.
        saved_bytes: Bytes that the forward keeps besides its input.
        left_bytes: Bytes of `saved_bytes` that remain after I of this layer, if it is the last of a stage.
        gradient_bytes: Bytes of the gradients that I keeps for W.
    """

    parameters: int
    forward: LayerPass
    backward_input: LayerPass
    backward_weight: LayerPass
    input_bytes: int
    output_bytes: int
    saved_bytes: int
    left_bytes: int
    gradient_bytes: int


def gpt_layers(shape: GptShape, microbatch_size: int, execution: GptExecution) -> tuple[GptLayer, GptLayer, GptLayer]:
    """Return the embedding, one of the equal blocks, and the head with the loss.

    Args:
        shape: Shape of the GPT. Heads, width and vocabulary are multiples of the number of GPUs that share a layer, and
            so is the context with sequence parallelism.
        microbatch_size: Samples.
        execution: Settings of the computation.
    """
    layers = _Layers(shape, microbatch_size, execution)
    return layers.embedding(), layers.block(), layers.head()


class _Layers:
    """The common numbers of all layers, for a micro-batch on one GPU."""

    def __init__(self, shape: GptShape, microbatch_size: int, execution: GptExecution) -> None:
        self._shape = shape
        self._recomputes, self._is_flash = execution.selective_recompute, execution.flash_attention
        self._gpus = gpus = execution.tensor_parallel
        self._element_bytes = element_bytes(execution.dtype)
        self._samples = microbatch_size
        self._tokens = microbatch_size * shape.context
        numbers = self._tokens * shape.width  # sbh
        self._shared = numbers // gpus  # inside attention and MLP
        self._between = self._shared if execution.sequence_parallel else numbers
        self._message_bytes = self._element_bytes * self._between
        self._reduced_bytes = self._element_bytes * numbers

    def embedding(self) -> GptLayer:
        """Return the embedding: rows of tokens plus rows of positions, then dropout."""
        e, between = self._element_bytes, self._between
        summed, dropped = Kernel(0, 3 * e * between), Kernel(0, (2 * e + 1) * between)
        return GptLayer(
            parameters=(self._shape.vocab // self._gpus + self._shape.context) * self._shape.width,
            forward=LayerPass((summed, dropped), (self._reduced_bytes,)),
            backward_input=LayerPass(),
            backward_weight=LayerPass((dropped, summed)),
            input_bytes=_TOKEN_BYTES * self._tokens,
            output_bytes=self._message_bytes,
            saved_bytes=between,
            left_bytes=0,
            gradient_bytes=0,
        )

    def block(self) -> GptLayer:
        """Return attention and MLP, each after a norm; the output of each gets dropout and is added to its input."""
        e, gpus, width = self._element_bytes, self._gpus, self._shape.width
        shared, between = self._shared, self._between
        linears = tuple(
            matrix_product(self._tokens, inputs, outputs, e)
            for inputs, outputs in (
                (width, 3 * width // gpus),
                (width // gpus, width),
                (width, 4 * width // gpus),
                (4 * width // gpus, width),
            )
        )
        attention, attention_back, kept = self._attention()
        rest = Kernel(0, 4 * e * between), Kernel(0, 8 * e * shared), Kernel(0, 2 * (3 * e + 1) * between)
        rest_back = Kernel(0, 6 * e * between), Kernel(0, 12 * e * shared), Kernel(0, 2 * (5 * e + 1) * between)
        again = attention if self._recomputes else ()
        inside = (3 * e + 2) * between + 12 * e * shared + (0 if self._recomputes else kept)
        return GptLayer(
            parameters=(12 * width + 7) * width // gpus + 6 * width,
            forward=LayerPass((*linears, *attention, *rest), (self._reduced_bytes,) * 2),
            backward_input=LayerPass((*again, *linears, *attention_back, *rest_back), (self._reduced_bytes,) * 2),
            backward_weight=LayerPass(linears),
            input_bytes=self._message_bytes,
            output_bytes=self._message_bytes,
            saved_bytes=inside,
            left_bytes=inside - between,  # I frees the topmost mask
            gradient_bytes=e * (7 * shared + 2 * between),
        )

    def _attention(self) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], int]:
        """Return the kernels of attention, forward and backward, and the bytes kept besides its inputs and outputs."""
        e, context, shared = self._element_bytes, self._shape.context, self._shared
        count, size = self._samples * self._shape.heads // self._gpus, self._shape.width // self._shape.heads
        rows = count * context
        scores = rows * context
        attended = matrix_product(context, size, context, e, count), matrix_product(context, context, size, e, count)
        if self._is_flash:
            flops = 2 * size * scores  # of one product
            sums = FLOAT32_BYTES * rows
            return (Kernel(2 * flops, 4 * e * shared + sums),), (Kernel(5 * flops, 8 * e * shared + sums),), sums
        forward = *attended, Kernel(0, (4 * e + 1) * scores)  # softmax, dropout with its mask
        return forward, (*attended, *attended, Kernel(0, (5 * e + 1) * scores)), (2 * e + 1) * scores

    def head(self) -> GptLayer:
        """Return the last norm, the scores of the vocabulary, and their loss in float32."""
        e, between = self._element_bytes, self._between
        vocab = self._shape.vocab // self._gpus
        scored = matrix_product(self._tokens, self._shape.width, vocab, e)
        scores = self._tokens * vocab
        return GptLayer(
            parameters=(vocab + 2) * self._shape.width,
            forward=LayerPass((Kernel(0, 2 * e * between), scored, Kernel(0, (e + 2 * FLOAT32_BYTES) * scores))),
            backward_input=LayerPass(
                (Kernel(0, (FLOAT32_BYTES + e) * scores), scored, Kernel(0, 3 * e * between)), (self._reduced_bytes,)
            ),
            backward_weight=LayerPass((scored,)),
            input_bytes=self._message_bytes,
            output_bytes=0,
            saved_bytes=e * between + FLOAT32_BYTES * scores,
            left_bytes=e * between,
            gradient_bytes=e * scores,
        )
