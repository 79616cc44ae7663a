"""Arguments for a model, its partition and its runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from pipesched.executor import ExecutionError, RunSettings, epsilon_fault, stream_fault
from pipesched.profiles.costs import Profile
from pipesched.profiles.models import Model, resolve_model
from pipesched.profiles.processes import prints_to_stderr
from pipesched.schedules import ScheduleTraits
from pipesched.schedules.formats import require_folder
from pipesched.workflows import ArgumentError, MissingDeviceError, is_rank, require_kind
from pipesched.workflows.arguments.cost_arguments import ProfileArgument, read_profile_argument

ModelArgument: TypeAlias = Model | str | Callable[[], Any]
"""A model, its name, or a function of a module that returns one, with its arguments as a partial of keywords."""


def read_model_argument(model: ModelArgument) -> Model:
    """Return a model; prints of a user's factory go to stderr.

    Raises:
        ArgumentError: `model` is neither a model nor a name.
        ProfileError: The model is unknown, or cannot be made.
    """
    if isinstance(model, Model):
        return model
    with prints_to_stderr():
        return resolve_model(_name_of(model))


def _name_of(model: ModelArgument) -> str:
    """Return the name of a model; the name of a function that returns it is ``module:function``.

    Raises:
        ArgumentError: `model` is neither a model, nor a name, nor a function of a module.
    """
    if isinstance(model, Model):
        return model.name
    if isinstance(model, partial) and model.keywords and not model.args:
        return f"{_name_of(model.func)}:" + ",".join(f"{key}={value}" for key, value in model.keywords.items())
    module, name = getattr(model, "__module__", None), getattr(model, "__qualname__", None)
    is_found = name is not None and getattr(sys.modules.get(str(module)), name, None) is model
    if is_found and not isinstance(model, type):
        return f"{module}:{name}"
    require_kind("model", model, str, "a Model, a name, as mlp or module:factory, or a function at the top of a module")
    return str(model)


def name_for_processes(model: ModelArgument) -> str:
    """Return the name by which another process makes `model`; under torchrun all processes make it themselves.

    Raises:
        ArgumentError: The model was made by hand, or its function is in no file that can be imported.
    """
    name = _name_of(model)
    if is_rank():
        return name
    if isinstance(model, Model) and not model.is_resolved:
        raise ArgumentError(
            f"model: got {name!r}, which other processes cannot build, expected the name of a function; write a "
            "function that returns the model, and give module:function"
        )
    if name.startswith("__main__:"):
        raise ArgumentError(
            f"model: got {name!r}, which other processes cannot import, expected a function of an importable module; "
            "put the function in a file of its own"
        )
    return name


def read_profile_of(profile: ProfileArgument, model: Model) -> Profile:
    """Return a profile of `model`.

    Raises:
        ArgumentError: The profile is of another model.
        ProfileError: The file is no profile.
    """
    loaded = read_profile_argument(profile)
    if loaded.model != model.name:
        where = "profile" if isinstance(profile, Profile) else profile
        raise ArgumentError(
            f"{where}: got a profile of {loaded.model}, expected one of {model.name}; "
            f"try pipesched.profile({model.name!r})"
        )
    return loaded


def require_possible(settings: RunSettings) -> None:
    """Refuse settings that this machine cannot run.

    Raises:
        ArgumentError: NCCL between CPUs, no GPU, a setting that contradicts streams, or no file of weights.
        ScheduleError: The folder of `save` does not exist or is not writable.
    """
    if settings.save is not None:
        require_folder(Path(settings.save).parent, settings.save)
    if settings.weights is not None:
        _require_weights(settings.weights)
    if settings.backend == "nccl" and settings.device == "cpu":
        raise ArgumentError("backend: got nccl with `device=cpu`, expected gloo; try `backend=auto`")
    fault = stream_fault(settings)
    if fault is not None:
        raise ArgumentError(fault)
    if settings.device == "cuda":
        require_gpu("device: got cuda", "`device=cpu`")


def require_gpu(got: str, advice: str) -> None:
    """Refuse a setting that needs a GPU if this machine has none.

    Args:
        got: The setting and its value, as ``device: got cuda``.
        advice: The remedy.

    Raises:
        MissingDeviceError: There is no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise MissingDeviceError(f"{got}, expected a GPU, but torch finds none here; try {advice}")


def _require_weights(path: str) -> None:
    """Refuse a file that is missing, or no safetensors; its tensors are checked where they are loaded."""
    from pipesched.executor.core import weight_file

    try:
        with weight_file(path):
            pass
    except ExecutionError as error:
        raise ArgumentError(str(error)) from error


def require_followed(schedules: Mapping[str, ScheduleTraits], settings: RunSettings) -> None:
    """Refuse a rule of prediction or averaging that no schedule follows.

    Args:
        schedules: The traits of each, by name.
        settings: The settings of the runs.

    Raises:
        ArgumentError: No schedule predicts weights, or no schedule averages.
    """
    names, every = ",".join(schedules), schedules.values()
    prediction, averaging = settings.prediction, settings.averaging
    if prediction is not None and all(traits.prediction is None for traits in every):
        raise ArgumentError(
            f"prediction: got {prediction.value} with {names}, expected a schedule that looks ahead; "
            "try pipeoptim, or leave it out"
        )
    if averaging != RunSettings().averaging and not any(traits.averages for traits in every):
        raise ArgumentError(
            f"averaging: got {averaging} with {names}, expected a schedule with elastic averaging; try avgpipe, or "
            "leave it out"
        )


def require_epsilon(schedules: Sequence[ScheduleTraits], settings: RunSettings) -> None:
    """Refuse numbers with which Adam's rule divides by zero, in the optimizer or in weight prediction.

    Args:
        schedules: The traits of each.
        settings: The settings of the runs.

    Raises:
        ArgumentError: A division by zero is possible.
    """
    own = [traits.prediction for traits in schedules if traits.prediction is not None]
    for rule in (None, *(settings.prediction or rule for rule in own)):
        fault = epsilon_fault(settings.dtype, settings.optimizer, rule)
        if fault is not None:
            raise ArgumentError(f"dtype: {fault}")
