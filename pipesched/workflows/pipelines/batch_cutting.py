"""Batches of a user's loop, cut into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipesched.executor.core import Batch
from pipesched.profiles import ProfileError
from pipesched.profiles.models import Structure, Value, flattened, microbatch, tensors_of
from pipesched.workflows import ArgumentError


@dataclass(frozen=True, slots=True)
class BatchForm:
    """The form of the batches of a loop.

    Attributes:
        sample: Inputs of one micro-batch.
        structure: Structure of the inputs.
        size: Samples of a micro-batch.
        num_microbatches: Micro-batches of a batch.
    """

    sample: Value
    structure: Structure
    size: int
    num_microbatches: int

    @staticmethod
    def of(example: Any, num_microbatches: int) -> BatchForm:
        """Return the form of batches, given the inputs of one micro-batch.

        Raises:
            ArgumentError: The example has no tensor, or tensors of several numbers of samples.
        """
        sample, structure = as_value("example", example)
        sizes = {len(tensor) if tensor.dim() else 0 for tensor in tensors_of(sample)}
        if len(sizes) != 1 or 0 in sizes:
            raise ArgumentError(
                f"example: got tensors of {_shapes(sample)}, expected inputs of one micro-batch, each with its samples "
                "in dimension 0; try example=(inputs[:2],)"
            )
        return BatchForm(sample, structure, sizes.pop(), num_microbatches)

    def cut(self, inputs: Any, targets: Value, *, is_whole: bool) -> list[Batch]:
        """Return the micro-batches of some samples, as views, at most `num_microbatches` in each Batch.

        Args:
            inputs: Inputs, as the example.
            targets: Targets with as many samples; no tensors for none.
            is_whole: Whether there must be exactly `num_microbatches`.

        Raises:
            ArgumentError: The samples cannot be divided, or have other shapes than the example.
        """
        values, structure = as_value("inputs", _as_in(self.structure.template, inputs))
        count = self._count(values, structure, is_whole=is_whole)
        for tensor in tensors_of(targets):
            if not tensor.dim() or len(tensor) != count * self.size:
                raise ArgumentError(
                    f"targets: got a tensor of {tuple(tensor.shape)}, expected {count * self.size} samples in "
                    "dimension 0, as the inputs have"
                )
        numbers = range(count)
        cut = [microbatch(values, number, count) for number in numbers]
        aims = [microbatch(targets, number, count) for number in numbers]
        most = self.num_microbatches
        return [Batch(cut[at : at + most], aims[at : at + most]) for at in range(0, count, most)]

    def _count(self, values: Value, structure: Structure, *, is_whole: bool) -> int:
        """Return the number of micro-batches of some inputs."""
        sample, whole = tensors_of(self.sample), tensors_of(values)
        template, like = structure.template, self.structure.template
        if isinstance(template, dict) and isinstance(like, dict) and template.keys() != like.keys():
            got, keys = (", ".join(map(str, names)) for names in (template, like))
            raise ArgumentError(f"inputs: got other keys than in the example ({got}), expected {keys}; pass these keys")
        if len(sample) != len(whole):
            raise ArgumentError(f"inputs: got {len(whole)} tensors, expected {len(sample)}, as the example has")
        if structure != self.structure and not (len(sample) == 1 and structure.is_bare):
            raise ArgumentError(
                "inputs: got another structure or other constants than in the example, expected the structure and "
                "constants of the example; pass these"
            )
        num_samples = len(whole[0]) if whole[0].dim() else 0
        expected = self.size * self.num_microbatches
        if (num_samples != expected) if is_whole else (not num_samples or num_samples % self.size):
            more = f"{expected}, {self.num_microbatches} micro-batches of {self.size}"
            size = num_samples // self.num_microbatches
            is_example = is_whole and size * self.num_microbatches == num_samples != 0
            advice = f"example=inputs[:{size}], or " if is_example else ""
            raise ArgumentError(
                f"inputs: got {num_samples} samples, expected {more if is_whole else f'a multiple of {self.size}'}; "
                f"try {advice}a DataLoader with drop_last=True"
            )
        for tensor, own in zip(whole, sample, strict=True):
            shape = (num_samples, *own.shape[1:])
            if tensor.shape != shape or tensor.dtype != own.dtype:
                advice = "pad the samples to one shape" if tensor.dtype == own.dtype else f"try .to({own.dtype})"
                raise ArgumentError(
                    f"inputs: got a tensor of {tensor.dtype}, {tuple(tensor.shape)}, expected {own.dtype}, {shape}, "
                    f"as in the example; {advice}"
                )
        return num_samples // self.size


def _as_in(template: Any, data: Any) -> Any:
    """Return `data` in the form of `template`.

    A dictionary gets the key order of `template`. A list becomes a tuple if `template` is a tuple, because a DataLoader
    turns tuples into lists. Other data are returned unchanged.
    """
    if isinstance(data, Mapping) and isinstance(template, dict) and data.keys() == template.keys():
        return {key: data[key] for key in template}
    return tuple(data) if isinstance(data, list) and isinstance(template, tuple) else data


def as_value(name: str, data: Any) -> tuple[Value, Structure]:
    """Return the tensors of a batch, and their structure.

    Raises:
        ArgumentError: `data` is neither a tensor nor a tuple, list or dictionary with tensors, or has a numpy array.
    """
    try:
        value, structure = flattened(data)
    except ProfileError as error:
        raise ArgumentError(f"{name}: {error}") from error
    if not tensors_of(value):
        raise ArgumentError(
            f"{name}: got {type(data).__name__}, expected a tensor, or a tuple or dictionary of tensors"
        )
    return value, structure


def joined(values: list[Value]) -> Value:
    """Return the value of all samples, given the values of the micro-batches; numbers without samples are stacked."""
    if isinstance(values[0], Tensor):
        tensors = [tensor for value in values for tensor in tensors_of(value)]
        return torch.cat(tensors) if tensors[0].dim() else torch.stack(tensors)
    columns = zip(*(value for value in values if isinstance(value, tuple)), strict=True)
    return tuple(None if column[0] is None else one_tensor(joined(list(column))) for column in columns)


def one_tensor(value: Value) -> Tensor:
    """Return `value`, which the caller knows to be one tensor, such as a loss."""
    assert isinstance(value, Tensor), "it is one"
    return value


def _shapes(value: Value) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(value))
