"""Measure a model's layers on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.profiles import DeviceKind, Dtype, OptimizerName
from pipesched.profiles.costs import Profile, median_profile
from pipesched.profiles.io import profile_text, save_profile
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.workflows import ArgumentError, Table, require_at_least, require_callable, require_flag
from pipesched.workflows.arguments import ModelArgument, read_model_argument, read_settings, require_possible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, repr=False)
class ProfileMeasurement:
    """The profile of a model, as `pipesched.profile` measured it.

    Attributes:
        profile: Seconds and bytes of every layer at each size: what `simulate`, `compare`, `run` and `verify` take.
    """

    profile: Profile

    def __repr__(self) -> str:
        return f"ProfileMeasurement({self.profile.model!r}, microbatch_sizes={self.profile.microbatch_sizes})"

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON.

        Raises:
            ProfileError: It cannot be written there.
        """
        save_profile(self.profile, Path(path))

    def to_json(self) -> str:
        """Return what `save` writes."""
        return profile_text(self.profile, "the profile")

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per layer and micro-batch size."""
        return [
            {
                "layer": index,
                "name": layer.name,
                "microbatch_size": measured.microbatch_size,
                "forward_s": measured.forward_s,
                "backward_s": measured.backward_s,
                "step_s": layer.step_s,
                "weight_bytes": layer.weight_bytes,
                "saved_bytes": measured.saved_bytes,
                "output_bytes": measured.output_bytes,
            }
            for index, layer in enumerate(self.profile.layers)
            for measured in layer.measurements
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per layer and micro-batch size."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def plot(self) -> Figure:
        """Draw seconds and saved bytes of every layer at the largest size."""
        from pipesched.simulator.views import profile_figure

        return profile_figure(self.profile)

    def table(self) -> Table:
        """Return a row per layer at the largest size, as people read it."""
        rows = [
            {
                "layer": f"{index} {layer.name}",
                "forward": readable_s(layer.measurements[-1].forward_s),
                "backward": readable_s(layer.measurements[-1].backward_s),
                "step": readable_s(layer.step_s),
                "copy": "-" if layer.work is None else readable_s(layer.work.copy_s),
                "predict": "-" if layer.work is None else readable_s(layer.work.predict_s),
                "average": "-" if layer.work is None else readable_s(layer.work.average_s),
                "weights": readable_bytes(layer.weight_bytes),
                "saved": readable_bytes(layer.measurements[-1].saved_bytes),
                "output": readable_bytes(layer.measurements[-1].output_bytes),
            }
            for index, layer in enumerate(self.profile.layers)
        ]
        title = f"{self.profile.model}, micro-batches of {self.profile.microbatch_sizes[-1]}"
        prices = [
            f"{price.factor:.3g} times the processor time where {price.num_processes} processes share a core"
            for price in self.profile.sharing
        ]
        return Table(title, tuple(rows), "; ".join([self.profile.provenance.device, *prices]))

    def _repr_html_(self) -> str:
        return self.table().to_html()


def profile(
    model: ModelArgument,
    microbatch_sizes: Sequence[int] = (1, 2, 4),
    *,
    repeats: int = 10,
    warmup: int = 3,
    passes: int = 1,
    companions: int = 0,
    pipelines: int = 1,
    optimizer: OptimizerName = "adamw",
    dtype: Dtype = "float32",
    device: DeviceKind = "cpu",
    threads: int = 1,
    seed: int = 0,
    splits: bool = True,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> ProfileMeasurement:
    """Measure seconds and bytes of every layer of a model at several micro-batch sizes.

    Args:
        model: A Model, or a name: ``gpt``, ``conv``, ``lstm``, ``digits``, ``mlp``, with arguments as in
            ``mlp:layers=8,width=64``, or ``module:function``.
        microbatch_sizes: Samples; costs are known from the smallest to the largest.
        repeats: Measured runs, of which the median counts.
        warmup: Runs before them.
        passes: Times that all of this is done, from the start, so that a slow moment of the machine does not speak for
            a layer: each number is the median of so many.
        companions: Processes that keep other cores as busy meanwhile as other ranks would.
        pipelines: Parallel pipelines that there may be: what 2 to so many processes on one core cost each other is
            measured too, and simulations of them count it. On a GPU they share by utilisation.
        optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``.
        dtype: ``float32``, ``float64``, ``bfloat16`` or ``float16``.
        device: ``cpu`` or ``cuda``.
        threads: CPU threads of one operation.
        seed: Seed of weights and data.
        splits: Whether to measure the two halves of the backward too, which only some schedules need.
        progress: Told now and then what fraction is done.

    Raises:
        ArgumentError: There is no such device, or an argument makes no sense.
        ProfileError: There is no such model, it fails, or an argument is out of range.
    """
    settings = read_settings(
        {"optimizer": optimizer, "dtype": dtype, "device": device, "threads": threads, "seed": seed}
    )
    for name, value, least in (
        ("repeats", repeats, 1),
        ("warmup", warmup, 0),
        ("passes", passes, 1),
        ("companions", companions, 0),
        ("pipelines", pipelines, 1),
    ):
        require_at_least(name, value, least)
    require_flag("splits", splits)
    require_callable("progress", progress)
    if isinstance(microbatch_sizes, str) or not isinstance(microbatch_sizes, Iterable):
        raise ArgumentError(f"microbatch_sizes: got {microbatch_sizes!r}, expected a list; try [1, 2, 4]")
    microbatch_sizes = tuple(microbatch_sizes)
    for size in microbatch_sizes:
        require_at_least("microbatch_sizes", size, 1)
    if pipelines > 1 and device != "cpu":
        raise ArgumentError(f"pipelines: got {pipelines} with device {device!r}, expected 1; leave it out")
    require_possible(settings)
    from pipesched.profiles.measuring import measure_sharing, profile_model
    from pipesched.profiles.models import torch_dtype

    built = read_model_argument(model)
    num_parts = passes + (pipelines > 1)

    def tick(index: int) -> Callable[[int, int, str], None]:
        return lambda done, total, text: progress((index + done / total) / num_parts)  # noqa: ARG005

    profiles = [
        profile_model(
            built,
            microbatch_sizes=microbatch_sizes,
            repeats=repeats,
            warmup=warmup,
            optimizer=optimizer,
            dtype=torch_dtype(dtype),
            device=device,
            threads=threads,
            companions=companions,
            seed=seed,
            splits=splits,
            progress=tick(index),
        )
        for index in range(passes)
    ]
    measured_profile = median_profile(*profiles)
    measured_profile = replace(
        measured_profile, provenance=replace(measured_profile.provenance, repeats=passes * repeats)
    )
    if pipelines > 1:
        prices = measure_sharing(
            built,
            microbatch_sizes=measured_profile.microbatch_sizes,
            num_processes=pipelines,
            repeats=passes * repeats,
            dtype=torch_dtype(dtype),
            threads=threads,
            seed=seed,
            progress=lambda fraction: progress((passes + fraction) / num_parts),
        )
        measured_profile = replace(measured_profile, sharing=prices)
    return ProfileMeasurement(measured_profile)
