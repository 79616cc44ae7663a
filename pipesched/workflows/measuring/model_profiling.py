"""Measure the layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pipesched.executor import LayerSettings, RunSettings
from pipesched.profiles import measuring
from pipesched.profiles.costs import Profile, median_profile
from pipesched.questions import USUAL_SIZES, OnShare, ProfiledSizes, ProfileSettings, unheard
from pipesched.schedules.common import tuple_of, values_of
from pipesched.workflows import ArgumentError, asks
from pipesched.workflows.arguments import ModelArgument, read_model_argument, require_possible
from pipesched.workflows.measuring.profiling import ProfileMeasurement


@dataclass(frozen=True)
class ProfileQuestion(ProfileSettings):
    """The question of `profile`; its fields are the arguments of that function."""

    model: ModelArgument
    microbatch_sizes: ProfiledSizes = None
    progress: OnShare = field(default=unheard, kw_only=True)


@asks(ProfileQuestion)
def profile(question: ProfileQuestion) -> ProfileMeasurement:
    """Measure seconds and bytes of every layer of a model at several micro-batch sizes.

    Args:
        model: A Model, or a name: ``gpt``, ``conv``, ``lstm``, ``digits``, ``mlp``, with arguments as in
            ``mlp:layers=8,width=64``, or ``module:function``.

    Raises:
        ArgumentError: The device does not exist, or an argument makes no sense.
        ProfileError: The model does not exist or fails, or an argument is out of range.
    """
    if question.pipelines > 1 and question.device != "cpu":
        raise ArgumentError(
            f"pipelines: got {question.pipelines} with device {question.device!r}, expected 1; leave it out"
        )
    require_possible(RunSettings(device=question.device))
    built = read_model_argument(question.model)
    num_parts = question.passes + (question.pipelines > 1)

    def tick(index: int) -> Callable[[int, int, str], None]:
        return lambda done, total, text: question.progress((index + done / total) / num_parts)  # noqa: ARG005

    settings = measuring.ProfilerSettings(
        microbatch_sizes=tuple_of(question.microbatch_sizes or USUAL_SIZES),
        repeats=question.repeats,
        warmup=question.warmup,
        companions=question.companions,
        splits=question.splits,
        **values_of(question, LayerSettings),
    )
    measured_profile = median_profile(
        *(measuring.profile_model(built, settings, tick(index)) for index in range(question.passes))
    )
    measured_profile = replace(
        measured_profile, provenance=replace(measured_profile.provenance, repeats=question.passes * question.repeats)
    )
    if question.pipelines > 1:
        prices = measuring.measure_sharing(
            built,
            replace(settings, repeats=question.passes * question.repeats),
            question.pipelines,
            lambda fraction: question.progress((question.passes + fraction) / num_parts),
        )
        measured_profile = replace(measured_profile, sharing=prices)
    return ProfileMeasurement(measured_profile, tuple(_kinds_note(measured_profile)))


def _kinds_note(measured: Profile) -> Iterator[str]:
    """Yield a note if layers share their measurement."""
    num_layers, num_kinds = len(measured.layers), len({replace(layer, name="") for layer in measured.layers})
    if num_kinds < num_layers:
        yield f"{num_layers} layers were measured as {num_kinds} kinds; equal layers have the same figures"
