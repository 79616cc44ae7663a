"""The measurement of one layer on one micro-batch, and the bytes that autograd saves for a stage of such layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, TypeAlias

from annotated_types import MaxLen

from pipesched.schedules.common import Bytes, Count, PositiveCount, Seconds

HAS_PARAMETERS = 1
"""`LayerSplit.gradient_bytes` of a layer with parameters whose gradients have an unknown size [bytes]."""


@dataclass(frozen=True, slots=True)
class BoundaryStorage:
    """A storage in the input or the output of a layer, or in both if the layer carries it.

    Attributes:
        num_bytes: Bytes of the storage.
        input_place: Place among the storages of the input, from 0, or None if the layer makes the storage.
        output_place: Place among the storages of the output, from 0, or None if the storage ends at the layer.
        is_saved: Whether autograd keeps the storage for the backward of the layer.
    """

    num_bytes: Bytes
    input_place: Count | None
    output_place: Count | None
    is_saved: bool


_Boundary: TypeAlias = Annotated[tuple[BoundaryStorage, ...], MaxLen(1000)]


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """The backward of one layer in two halves: I, then W (arXiv:2401.10241).

    The last four fields correspond to the fields of `LayerMeasurement`, but show the state after I, for the last layer
    of a stage. I frees the storages above the topmost parameters; the storages below stay for W.

    Attributes:
        backward_input_s: Seconds of I.
        backward_weight_s: Seconds of W.
        gradient_bytes: Bytes of the gradients that I keeps for W.
        saved_bytes: Bytes of other storages that autograd still keeps after I.
        input_saved: Whether autograd still keeps the input's storage after I.
        output_saved: Whether autograd still keeps the output's storage after I.
        boundary: Storages at the boundaries, each saved if autograd still keeps it after I.
    """

    backward_input_s: Seconds
    backward_weight_s: Seconds
    gradient_bytes: Bytes
    saved_bytes: Bytes
    input_saved: bool
    output_saved: bool
    boundary: _Boundary = ()


@dataclass(frozen=True, slots=True)
class LayerMeasurement:
    """One layer on one micro-batch. The last layer includes the loss.

    Of several tensors at a boundary, the bytes are sums, and a flag is true if it is true for all of them.

    Attributes:
        microbatch_size: Samples.
        forward_s: Seconds of the forward.
        backward_s: Seconds of the full backward; the first layer computes no gradient of its input.
        input_bytes: Bytes of the input, as a message.
        output_bytes: Bytes of the output, as a message; 0 for the last layer.
        output_storage_bytes: Bytes of the output's storage; more than `output_bytes` if the output is a view of a part.
        saved_bytes: Bytes of the storages that autograd keeps, without parameters, buffers, input and output.
        input_saved: Whether autograd keeps the input's storage.
        output_saved: Whether autograd keeps the output's storage.
        output_is_input: Whether input and output have the same storage, as in a reshaping layer.
        split: The backward in two halves. None for the first layer, which has no I, and if PyTorch cannot split the
            backward.
        launch_s: Seconds that the host takes to launch forward and backward on a GPU; None on other devices, or if not
            measured.
        working_bytes: Peak memory of the backward besides its inputs, from the peak of a GPU's allocator; None on other
            devices, or if not measured.
        boundary: Storages of input and output, if one of the two has several tensors; empty for two single tensors.
        output_gradient_bytes: Bytes of the gradient of the output, as a message (default: `output_bytes`).
    """

    microbatch_size: PositiveCount
    forward_s: Seconds
    backward_s: Seconds
    input_bytes: Bytes
    output_bytes: Bytes
    output_storage_bytes: Bytes
    saved_bytes: Bytes
    input_saved: bool
    output_saved: bool
    output_is_input: bool
    split: LayerSplit | None = None
    launch_s: Seconds | None = None
    working_bytes: Bytes | None = None
    boundary: _Boundary = ()
    output_gradient_bytes: Bytes | None = None

    @property
    def said_output_gradient_bytes(self) -> int:
        """Bytes of the gradient of the output; the bytes of the output if no other number is given."""
        return self.output_bytes if self.output_gradient_bytes is None else self.output_gradient_bytes


class _Kept(NamedTuple):
    """The boundary storages that autograd keeps for a stage; the input of the stage is kept from the start.

    Attributes:
        received_bytes: For each layer, bytes of the storages in its input that this layer is the first to keep.
        made_bytes: For each layer, bytes of the storages that it makes for its output and keeps.
        is_output_kept: Whether each storage of the stage's output is kept.
    """

    received_bytes: list[int]
    made_bytes: list[int]
    is_output_kept: list[bool]


def _kept(measured: Sequence[LayerMeasurement]) -> _Kept:
    """Follow the storages from boundary to boundary; partitions call this for very many stages."""
    kept = _Kept([], [], [])
    behind: dict[int, tuple[int, bool]] = {}  # bytes, and whether they are kept, by place at the boundary
    for m in measured:
        before, behind, received_bytes, made_bytes = behind, {}, 0, 0
        if not m.boundary:
            num_bytes, is_kept = before.get(0, (0, True))
            if m.input_saved and not is_kept:
                received_bytes, is_kept = num_bytes, True
            if not m.output_is_input:
                num_bytes, is_kept = m.output_storage_bytes, m.output_saved
                made_bytes = num_bytes if is_kept else 0
            behind[0] = num_bytes, is_kept
        for storage in m.boundary:
            num_bytes, is_kept = storage.num_bytes, False
            if storage.input_place is not None:
                num_bytes, is_kept = before.get(storage.input_place, (num_bytes, True))
            if storage.is_saved and not is_kept:
                is_kept = True
                made_bytes += num_bytes if storage.input_place is None else 0
                received_bytes += num_bytes if storage.input_place is not None else 0
            if storage.output_place is not None:
                behind[storage.output_place] = num_bytes, is_kept
        kept.received_bytes.append(received_bytes)
        kept.made_bytes.append(made_bytes)
    kept.is_output_kept.extend(is_kept for _, is_kept in behind.values())
    return kept


def saved_bytes(measured: Sequence[LayerMeasurement]) -> int:
    """Return the bytes of the stage's input and of every storage that its layers keep, each counted once.

    The storage of a boundary counts if the layer that makes it, or a layer that gets it, keeps it.
    """
    kept = _kept(measured)
    inside_bytes = sum(m.saved_bytes for m in measured)
    return measured[0].input_bytes + inside_bytes + sum(kept.received_bytes) + sum(kept.made_bytes)


def freed_bytes(measured: Sequence[LayerMeasurement]) -> list[int]:
    """Return the bytes that the backward of each layer of a stage frees at its end: saved bytes, and its input.

    A storage of the input that a layer before keeps is not freed yet.
    """
    received_bytes = _kept(measured).received_bytes
    if measured[0].input_saved:
        received_bytes[0] = measured[0].input_bytes
    return [m.saved_bytes + num_bytes for m, num_bytes in zip(measured, received_bytes, strict=True)]


def output_is_saved(measured: Sequence[LayerMeasurement]) -> bool:
    """Return whether the output is one of the storages in `saved_bytes`, and this storage contains only the output.

    Otherwise the stage sends a copy, or holds a larger storage while it sends: the output is part of a larger tensor,
    or one message packs several tensors.
    """
    if measured[-1].output_storage_bytes != measured[-1].output_bytes:
        return False
    return _kept(measured).is_output_kept == [True]


def saved_for_weight_bytes(measured: Sequence[LayerMeasurement]) -> int:
    """Return the bytes held from the end of I to the end of W: gradients, and storages as in `saved_bytes`.

    The topmost ops with parameters keep the graph below them for W. I frees the graph above, which may be whole layers.

    Args:
        measured: Layers, each with a split.
    """
    left: list[LayerMeasurement] = []
    has_parameters, gradient_bytes = False, 0
    for m in reversed(measured):
        after = m.split
        assert after is not None, "each layer has a split"
        if not has_parameters:  # no op with parameters is above this layer
            left.append(
                replace(
                    m,
                    saved_bytes=after.saved_bytes,
                    input_saved=after.input_saved,
                    output_saved=after.output_saved,
                    boundary=after.boundary,
                )
            )
        else:
            left.append(m)
        has_parameters |= after.gradient_bytes > 0
        gradient_bytes += after.gradient_bytes if after.gradient_bytes != HAS_PARAMETERS else 0
    return saved_bytes(left[::-1]) + gradient_bytes if has_parameters else 0
