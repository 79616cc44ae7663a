"""Options of ``pipesched plan``: the conditions of its setup, and for measuring a model without a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

import pipesched
from pipesched.cli.errors import InputError
from pipesched.cli.options.torch_options import load_model, require_device
from pipesched.cli.terminal import progress_bar
from pipesched.executor import LayerSettings
from pipesched.questions import ConvertRate, InputShare, LayoutSettings
from pipesched.schedules.common import MAX_NUMBER, Counts, Description, tuple_of, values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import NetworkOptions

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import Profile
    from pipesched.workflows.simulating import Setup

_MOST_PROFILED = 8
"""Default number of samples in the largest measured micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConditions:
    """Options for compression, backwards and the network."""

    convert_bytes_per_s: ConvertRate = None
    input_share: InputShare = None
    network: NetworkOptions = NetworkOptions()  # noqa: RUF009 -- frozen

    def setup(self, profile: Profile, cluster: Cluster) -> Setup:
        """Return the setup with a profile and machines."""
        from pipesched.workflows.simulating import Setup

        return Setup(
            profile,
            cluster,
            self.network,
            input_share=self.input_share,
            convert_bytes_per_s=self.convert_bytes_per_s,
        )


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(LayoutSettings):
    """Options for planning a transformer that is estimated."""

    gpu: Annotated[
        str | None,
        typer.Option(help="Data sheet of the GPUs, as h100, or a file (JSON) (default: the one of the --machine)."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(LayerSettings):
    """Options for profiling a model without a given profile."""

    panel: ClassVar[str] = "Run"
    microbatch_sizes: Annotated[
        Counts | None,
        Description(
            "Samples per micro-batch to measure of a model, as 1,2,4; of a table, its one size.",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None

    def load(self, what: str, batch_size: int, num_devices: int) -> Profile:
        """Read a profile, or measure the model of that name.

        Raises:
            InputError: A profile, and options for measuring one.
            ProfileError: The text is neither a file nor a model, or the model fails.
        """
        from pipesched.profiles.io import load_profile, names_profile

        if suffix_of(what) == ".csv":
            return self._of_table(what)
        if names_profile(what):
            if self != ModelOptions():
                raise InputError(
                    f"{what}: got a profile, and an option for measuring one, expected one of them; leave it out"
                )
            return load_profile(what)
        from pipesched.profiles.processes import num_companions

        require_device(self.device)
        sizes = [2**power for power in range(4) if 2**power <= min(batch_size, _MOST_PROFILED)]
        if self.microbatch_sizes is not None:
            sizes = list(tuple_of(self.microbatch_sizes))
        model = load_model(what)
        companions = num_companions(num_devices, self.device)
        with progress_bar(f"profiling {model.name}") as tick:
            return pipesched.profile(
                model, sizes, companions=companions, progress=tick, **values_of(self, LayerSettings)
            ).profile

    def _of_table(self, file: str) -> Profile:
        """Return the profile of a table of layers; the table is for one micro-batch size."""
        sizes = () if self.microbatch_sizes is None else tuple_of(self.microbatch_sizes)
        if len(sizes) != 1 or self != ModelOptions(microbatch_sizes=self.microbatch_sizes):
            raise InputError(
                f"{file}: got a table of layers, expected --microbatch-sizes with the one size that it is of, and no "
                "other option of a model; try --microbatch-sizes 1, or, for more sizes, "
                f"'pipesched profile --layer-costs {file}'"
            )
        from pipesched.workflows.measuring import profile_of_layers

        return profile_of_layers(file, sizes[0]).profile
