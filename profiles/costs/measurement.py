"""The measurement of one layer on one micro-batch, and the bytes that autograd saves for a stage of such layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

HAS_PARAMETERS = 1
"""`LayerSplit.gradient_bytes` of a layer with parameters whose gradients have an unknown size [bytes]."""


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """The backward of one layer in two halves: I, then W (arXiv:2401.10241).

    The last three fields are as in `LayerMeasurement`, but after I, for the last layer of a stage. I frees the storages
    above the topmost parameters; the storages below stay for W.

    Attributes:
        backward_input_s: Seconds of I.
        backward_weight_s: Seconds of W.
        gradient_bytes: Bytes of the gradients that I keeps for W.
        saved_bytes: Bytes of other storages that autograd still keeps after I.
        input_saved: Whether autograd still keeps the input's storage after I.
        output_saved: Whether autograd still keeps the output's storage after I.
    """

    backward_input_s: float
    backward_weight_s: float
    gradient_bytes: int
    saved_bytes: int
    input_saved: bool
    output_saved: bool


@dataclass(frozen=True, slots=True)
class LayerMeasurement:
    """One layer on one micro-batch. The last layer includes the loss.

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
    """

    microbatch_size: int
    forward_s: float
    backward_s: float
    input_bytes: int
    output_bytes: int
    output_storage_bytes: int
    saved_bytes: int
    input_saved: bool
    output_saved: bool
    output_is_input: bool
    split: LayerSplit | None = None
    launch_s: float | None = None
    working_bytes: int | None = None


def saved_bytes(measured: Sequence[LayerMeasurement]) -> int:
    """Return the bytes of the stage's input and of every storage that its layers keep, each counted once.

    The storage of a boundary counts if the layer before or behind the boundary keeps it. A layer that only reshapes
    has the same storage at both of its boundaries.
    """
    total = boundary_bytes = measured[0].input_bytes
    counted = True
    for m in measured:
        total += m.saved_bytes
        if m.input_saved and not counted:
            total += boundary_bytes
            counted = True
        if not m.output_is_input:
            boundary_bytes, counted = m.output_storage_bytes, m.output_saved
            total += boundary_bytes if counted else 0
    return total


def output_is_saved(measured: Sequence[LayerMeasurement]) -> bool:
    """Return whether the output is one of the storages in `saved_bytes`, and this storage contains only the output.

    Otherwise, as for a part of a larger tensor, the stage sends a copy, or holds a larger storage meanwhile.
    """
    if measured[-1].output_storage_bytes != measured[-1].output_bytes:
        return False
    for m in reversed(measured):
        if m.output_saved or not m.output_is_input:
            return m.output_saved
        if m.input_saved:
            return True
    return True  # the output of the stage is its input


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
            kept = after.saved_bytes, after.input_saved, after.output_saved
            left.append(replace(m, saved_bytes=kept[0], input_saved=kept[1], output_saved=kept[2]))
        else:
            left.append(m)
        has_parameters |= after.gradient_bytes > 0
        gradient_bytes += after.gradient_bytes if after.gradient_bytes != HAS_PARAMETERS else 0
    return saved_bytes(left[::-1]) + gradient_bytes if has_parameters else 0
