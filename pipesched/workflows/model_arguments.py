"""A model, how it is run, and how it is cut, as arguments: their words are those of `RunSpec`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict, get_args

from pipesched.executor import DTYPES, Averaging, Backend, DeviceKind, MessagePrecision, epsilon_fault
from pipesched.profiles import ProfileError
from pipesched.profiles.costs import Profile, layer_seconds
from pipesched.profiles.models import Model, resolve_model
from pipesched.profiles.partitioning import parse_partition
from pipesched.profiles.processes import prints_to_stderr
from pipesched.schedules import PredictionRule, ScheduleTraits
from pipesched.workflows.arguments import ProfileArgument, read_profile_argument
from pipesched.workflows.errors import ArgumentError, require_at_least, require_choice

ModelArgument: TypeAlias = Model | str


class RunKeywords(TypedDict, total=False):
    """How a model is run, whatever the schedule; what is left out is as in `RunSpec`.

    Attributes:
        optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw`` (the default).
        lr: Learning rate; 0.001.
        seed: Of weights and data; 0.
        prediction: How weights are predicted where an op looks ahead; None: as the catalogue says of the schedule.
        dtype: ``float32`` (the default), ``float64``, ``bfloat16`` or ``float16``.
        device: ``cpu`` (the default) or ``cuda``.
        backend: Of the messages between processes: ``auto`` (the default), ``gloo`` or ``nccl``.
        compression: ``half``: messages between stages go in half precision where it fits; None (the default): as is.
        averaging: Of pipelines: ``asynchronous`` (the default) or ``synchronous``.
        threads: CPU threads of a rank; 1.
        timeout_s: How long one message may keep a rank waiting [s]; 60.
        is_pinned: Whether every rank on CPUs gets cores of its own, where there are enough; True.
        save: Folder that gets the parameters of every stage; None: none.
    """

    optimizer: str
    lr: float
    seed: int
    prediction: PredictionRule | None
    dtype: str
    device: DeviceKind
    backend: Backend
    compression: MessagePrecision | None
    averaging: Averaging
    threads: int
    timeout_s: float
    is_pinned: bool
    save: str | None


_WORDS: dict[str, tuple[str | None, ...]] = {
    "dtype": DTYPES,
    "device": get_args(DeviceKind),
    "backend": get_args(Backend),
    "compression": (None, *get_args(MessagePrecision)),
    "averaging": get_args(Averaging),
}
"""What the keywords that are words may be, but for the optimizer, whose names stand where torch is loaded."""


def require_keywords(keywords: RunKeywords) -> None:
    """Refuse a keyword that there is not, or that is none of its words or no such number.

    Raises:
        ArgumentError: There is one.
    """
    for name, value in keywords.items():
        if name not in RunKeywords.__annotations__:
            raise ArgumentError(f"{name}: got {value!r}, but there is no such argument; see RunKeywords")
        if name in _WORDS:
            require_choice(name, value, _WORDS[name])
    if "optimizer" in keywords:
        from pipesched.profiles.models import OPTIMIZERS

        require_choice("optimizer", keywords["optimizer"], tuple(OPTIMIZERS))
    if "prediction" in keywords and not isinstance(keywords["prediction"], PredictionRule | None):
        rules = ", ".join(f"PredictionRule.{rule.name}" for rule in PredictionRule)
        raise ArgumentError(f"prediction: got {keywords['prediction']!r}, expected None or one of {rules}")
    if "threads" in keywords:
        require_at_least("threads", keywords["threads"], 1)
    if "seed" in keywords:
        require_at_least("seed", keywords["seed"], -(2**63))
    lr, timeout_s = keywords.get("lr", 0.0), keywords.get("timeout_s", 1.0)
    if not (isinstance(lr, int | float) and math.isfinite(lr) and lr >= 0):
        raise ArgumentError(f"lr: got {lr!r}, expected a finite number, 0 or more; try 0.001")
    if not (isinstance(timeout_s, int | float) and timeout_s > 0):
        raise ArgumentError(f"timeout_s: got {timeout_s!r}, expected seconds above 0; try 60")


def read_model_argument(model: ModelArgument) -> Model:
    """Return a model; what a user's factory prints meanwhile goes to stderr.

    Raises:
        ArgumentError: It is neither a model nor a name.
        ProfileError: There is no such model, or it cannot be made.
    """
    if isinstance(model, Model):
        return model
    if not isinstance(model, str):
        raise ArgumentError(f"model: got {model!r}, expected a Model, or a name; try 'mlp'")
    with prints_to_stderr():
        return resolve_model(model)


def name_for_processes(model: ModelArgument) -> str:
    """Return the name by which another process makes `model` again.

    Raises:
        ArgumentError: There is none: the model was made by hand.
        ProfileError: There is no such model.
    """
    if not isinstance(model, Model):
        return model
    try:
        again = read_model_argument(model.name)
    except ProfileError:
        again = None
    if again is None or len(again.layers) != len(model.layers):
        raise ArgumentError(
            f"model: got {model.name!r}, which other processes cannot make, expected a name; write a function that "
            "returns it, and name that as module:function"
        )
    return model.name


def read_profile_of(profile: ProfileArgument, model: Model) -> Profile:
    """Return a profile, which must be of `model`.

    Raises:
        ArgumentError: It is of another model.
        ProfileError: The file is no profile.
    """
    loaded = read_profile_argument(profile)
    if loaded.model != model.name:
        where = "profile" if isinstance(profile, Profile) else profile
        raise ArgumentError(
            f"{where}: got a profile of {loaded.model}, expected one of {model.name}; "
            f"try pipesched profile {model.name} --out FILE"
        )
    return loaded


def cut_model(
    model: Model, num_stages: int, partition: str | None, profile: Profile | None, microbatch_size: int
) -> tuple[tuple[int, int], ...]:
    """Return the half-open range of layers of each stage.

    Args:
        model: Is cut.
        num_stages: Into so many.
        partition: ``balanced`` (None, with a profile), ``uniform`` (None, without), or layers per stage as ``3,3,4``.
        profile: Says how long each layer takes.
        microbatch_size: For which.

    Raises:
        ArgumentError: Balanced without a profile.
        ProfileError: The model cannot be cut so.
    """
    if profile is None and partition == "balanced":
        raise ArgumentError(
            "partition: got balanced without `profile`, expected uniform or counts; give the profile too"
        )
    seconds = (1.0,) * len(model.layers) if profile is None else layer_seconds(profile, microbatch_size)
    return parse_partition(partition or ("uniform" if profile is None else "balanced"), seconds, num_stages)


def require_possible(keywords: RunKeywords) -> None:
    """Refuse what cannot run on this machine.

    Raises:
        ArgumentError: NCCL between CPUs, or no GPU.
    """
    device = keywords.get("device", "cpu")
    if keywords.get("backend", "auto") == "nccl" and device == "cpu":
        raise ArgumentError("backend: got nccl with `device=cpu`, expected gloo; try `backend=auto`")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ArgumentError("device: got cuda, expected a GPU, and torch sees none here; try cpu")


def require_followed(schedules: Mapping[str, ScheduleTraits], keywords: RunKeywords) -> None:
    """Refuse a rule of prediction or averaging that none of the schedules would follow.

    Args:
        schedules: The traits of each, by name.
        keywords: How they are run.

    Raises:
        ArgumentError: No schedule looks ahead, or none is averaged.
    """
    names, every = ",".join(schedules), schedules.values()
    prediction, averaging = keywords.get("prediction"), keywords.get("averaging", "asynchronous")
    if prediction is not None and all(traits.prediction is None for traits in every):
        raise ArgumentError(
            f"prediction: got {prediction.value} with {names}, expected a schedule that looks ahead; "
            "try pipeoptim, or leave it out"
        )
    if averaging != "asynchronous" and not any(traits.averages for traits in every):
        raise ArgumentError(
            f"averaging: got {averaging} with {names}, expected a schedule that is averaged; "
            "try avgpipe, or leave it out"
        )


def require_epsilon(schedules: Sequence[ScheduleTraits], keywords: RunKeywords) -> None:
    """Refuse numbers in which Adam's rule divides by zero, of the optimizer or of weights predicted.

    Args:
        schedules: The traits of each.
        keywords: How they are run.

    Raises:
        ArgumentError: They are.
    """
    dtype, optimizer = keywords.get("dtype", "float32"), keywords.get("optimizer", "adamw")
    own = [traits.prediction for traits in schedules if traits.prediction is not None]
    for rule in (None, *(keywords.get("prediction") or rule for rule in own)):
        fault = epsilon_fault(dtype, optimizer, rule)
        if fault is not None:
            raise ArgumentError(f"dtype: {fault}")
