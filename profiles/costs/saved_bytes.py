"""The bytes that autograd saves for a stage: the storages of its layers, each counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipesched.profiles.costs.measurement import HAS_PARAMETERS, LayerMeasurement


def saved_bytes(measured: Sequence[LayerMeasurement]) -> int:
    """Return the stage's input plus every storage that its layers keep, each once.

    Walks from boundary to boundary: a boundary's storage counts when the layer before or the layer after keeps it, and
    is still the same storage behind a layer that only reshapes.
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
    """Return whether the output is one of the storages in `saved_bytes`, and that storage contains only the output.

    Otherwise, as for a part of a larger tensor, a copy is sent, or more than the output is held meanwhile.
    """
    if measured[-1].output_storage_bytes != measured[-1].output_bytes:
        return False
    for m in reversed(measured):
        if m.output_saved or not m.output_is_input:
            return m.output_saved
        if m.input_saved:
            return True
    return True  # the stage hands on its input


def saved_for_weight_bytes(measured: Sequence[LayerMeasurement]) -> int:
    """Return the bytes held from the end of I to the end of W: gradients, and storages as in `saved_bytes`.

    The graph is kept by the topmost ops with parameters. I frees all above them, which may be whole layers, and W needs
    the rest.

    Args:
        measured: Layers, each with a split.
    """
    left: list[LayerMeasurement] = []
    has_parameters, gradient_bytes = False, 0
    for m in reversed(measured):
        after = m.split
        assert after is not None, "the caller has looked"
        if not has_parameters:  # there is nothing with parameters above
            kept = after.saved_bytes, after.input_saved, after.output_saved
            left.append(replace(m, saved_bytes=kept[0], input_saved=kept[1], output_saved=kept[2]))
        else:
            left.append(m)
        has_parameters |= after.gradient_bytes > 0
        gradient_bytes += after.gradient_bytes if after.gradient_bytes != HAS_PARAMETERS else 0
    return saved_bytes(left[::-1]) + gradient_bytes if has_parameters else 0
