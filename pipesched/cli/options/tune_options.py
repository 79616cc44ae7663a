"""Options of ``pipesched tune`` for its profile: read from a file, or measured first; and the cut of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.torch_options import RunOptions, TrustModel, load_model
from pipesched.questions import InputShare, LayerCut, TuneSettings
from pipesched.schedules.common import tuple_of
from pipesched.simulator import NetworkOptions

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import Profile
    from pipesched.workflows.simulating import Setup

_MOST_SIZES = 8
"""Micro-batch sizes to measure, with linear interpolation between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedModel:
    """A model or its profile, the cut of its layers, and the network."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|MODEL", help="Measured profile (JSON), or a model that is profiled first, as gpt:layers=8."
        ),
    ]
    partition: LayerCut = None
    input_share: InputShare = None
    network: NetworkOptions = NetworkOptions()  # noqa: RUF009 -- frozen
    trust_model: TrustModel = False

    @property
    def is_file(self) -> bool:
        """Whether a profile is given, and not a model."""
        from pipesched.profiles.io import names_profile

        return names_profile(self.model)

    def setup(self, machines: MachineOptions, cluster: Cluster, asked: TuneSettings, runs: RunOptions) -> Setup:
        """Return the setup, with a profile that is read or measured.

        Args:
            machines: Options for the machines.
            cluster: The machines, a device for each rank.
            asked: The settings of the search.
            runs: The options of runs.

        Raises:
            InputError: The options contradict each other.
            ProfileError: A file is bad, the model does not exist, or it has fewer layers than stages.
        """
        from pipesched.profiles.io import load_profile, trusted
        from pipesched.workflows.simulating import Setup

        if asked.resume is not None and not self.is_file:
            raise InputError(
                f"--resume: got it with {self.model}, which would be profiled anew, expected the same profile as "
                "before; try pipesched profile --out first"
            )
        num_devices = len(cluster.devices)
        profile = load_profile(self.model) if self.is_file else self._measured(asked, runs, num_devices)
        machines.require_judged_profile(profile)
        machines.require_gpus(profile)
        if self.trust_model:
            profile = replace(profile, model=trusted(profile.model))
        return Setup(profile, cluster, self.network, partition=self.partition, input_share=self.input_share)

    def _measured(self, asked: TuneSettings, runs: RunOptions, num_devices: int) -> Profile:
        """Measure the micro-batch sizes of the space, or a few from the smallest to the largest."""
        from pipesched.profiles.partitioning import parse_partition
        from pipesched.simulator.search import divisors
        from pipesched.simulator.tuner import AVGPIPE
        from pipesched.workflows.tuning import require_dividing

        model = load_model(self.model)
        partition = self.partition or "balanced"
        assert isinstance(partition, str), "an option is a text"
        parse_partition(partition, (1.0,) * len(model.layers), num_devices)
        counts: Sequence[int] = divisors(asked.batch_size)
        counts_asked = counts if asked.microbatches is None else tuple_of(asked.microbatches)
        require_dividing(counts_asked, asked.batch_size, counts)
        sizes = sorted({asked.batch_size // count for count in counts_asked})
        step = max(1.0, (len(sizes) - 1) / (_MOST_SIZES - 1))
        some = {sizes[round(step * number)] for number in range(min(_MOST_SIZES, len(sizes)))}
        runs.require_possible()
        return runs.profile(
            model,
            sorted(some),
            num_devices,
            splits=tuple(asked.schedules) != (AVGPIPE,),
            num_pipelines=max(tuple_of(asked.pipelines or 1)),
        )
