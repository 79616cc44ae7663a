"""Options of ``pipesched plan``: the request to the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.count_list import counts
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.schedule_list import schedule_names
from pipesched.cli.options.torch_options import load_model, require_device
from pipesched.cli.terminal import progress_bar
from pipesched.executor import RunSettings
from pipesched.profiles import MessagePrecision
from pipesched.questions import InputShare
from pipesched.schedules.common import MAX_NUMBER
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import NetworkOptions

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.simulator.planner import Request

_COMPRESSIONS: dict[str, tuple[MessagePrecision | None, ...]] = {
    "no": (None,),
    "half": ("half",),
    "both": (None, "half"),
}
_MOST_PROFILED = 8
"""Default number of samples in the largest measured micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(RunSettings):
    """Options for profiling a model without a given profile."""

    panel: ClassVar[str] = "Run"
    microbatch_sizes: Annotated[
        str | None,
        typer.Option(help="Samples per micro-batch to measure of a model, as 1,2,4; of a table, its one size."),
    ] = None

    shown: ClassVar[dict[str, str | None]] = dict.fromkeys(
        ("microbatch_sizes", "optimizer", "dtype", "device", "threads")
    )

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
        from pipesched.profiles.measuring import profile_model
        from pipesched.profiles.models import torch_dtype
        from pipesched.profiles.processes import num_companions

        require_device(self.device)
        sizes = [2**power for power in range(4) if 2**power <= min(batch_size, _MOST_PROFILED)]
        if self.microbatch_sizes is not None:
            sizes = list(counts(self.microbatch_sizes, "--microbatch-sizes", 1))
        model = load_model(what)
        with progress_bar(f"profiling {model.name}") as tick:
            return profile_model(
                model,
                microbatch_sizes=sizes,
                optimizer=self.optimizer,
                dtype=torch_dtype(self.dtype),
                device=self.device,
                threads=self.threads,
                companions=num_companions(num_devices, self.device),
                progress=lambda done, total, text: tick(done / total),  # noqa: ARG005
            )

    def _of_table(self, file: str) -> Profile:
        """Return the profile of a table of layers, which is for micro-batches of one size."""
        sizes = () if self.microbatch_sizes is None else counts(self.microbatch_sizes, "--microbatch-sizes", 1)
        if len(sizes) != 1 or self != ModelOptions(microbatch_sizes=self.microbatch_sizes):
            raise InputError(
                f"{file}: got a table of layers, expected --microbatch-sizes with the one size that it is of, and no "
                "other option of a model; try --microbatch-sizes 1, or, for more sizes, "
                f"'pipesched profile --layer-costs {file}'"
            )
        from pipesched.workflows.measuring import profile_of_layers

        return profile_of_layers(file, sizes[0]).profile


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Machines, batch, and the search space."""

    panel: ClassVar[str] = "Search"
    machines: MachineOptions
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", help="Samples per optimizer step.", min=1, max=MAX_NUMBER)
    ]
    devices: Annotated[
        int | None, typer.Option("--devices", help="Number of devices (default: all of the cluster).", min=1)
    ] = None
    schedules: Annotated[
        str | None,
        typer.Option(
            "--schedules",
            "-s",
            help="Schedules to try: names, or builders of your own (default: gpipe,1f1b,interleaved,zb_h1).",
        ),
    ] = None
    asynchronous: Annotated[
        bool,
        typer.Option("--asynchronous", help="Try schedules with stale weights too: pipedream_2bw, wpipe, 1f1b_rr."),
    ] = False
    depth: Annotated[str | None, typer.Option(help="Ranks per copy of the pipeline, as 2,4-8 (default: any).")] = None
    chunks: Annotated[str, typer.Option("--chunks", "-v", help="Stages per rank of schedules with several.")] = "2"
    recompute: Annotated[
        Literal["no", "yes", "both"], typer.Option(help="Recompute activations from the input of each stage.")
    ] = "both"
    compression: Annotated[
        Literal["no", "half", "both"], typer.Option(help="Send activations and gradients in half precision.")
    ] = "no"
    convert: Annotated[
        float | None,
        typer.Option(help="Throughput of --compression on a device in bytes/s (default: free).", min=1.0),
    ] = None
    fewer: Annotated[bool, typer.Option("--fewer", help="Try layouts that leave devices idle too.")] = False
    input_share: InputShare = None
    network: NetworkOptions = NetworkOptions()  # noqa: RUF009 -- frozen

    def load(self, profile: str, model: ModelOptions) -> Request:
        """Return the request.

        Raises:
            InputError: Options that do not go together.
            ProfileError: A bad file, or more stages than layers.
            ScheduleError: A schedule does not exist.
        """
        from pipesched.profiles.clusters import first_devices
        from pipesched.simulator.planner import Request
        from pipesched.workflows.arguments import read_profile_argument

        names = self._names()
        if self.devices is None and self.machines.cluster is None and self.machines.nodes is None:
            raise InputError(
                "plan: got no machines, expected some; try --cluster F, --nodes 2 --gpus 4, or --devices 4"
            )
        cluster = first_devices(self.machines.load(self.devices or 1, "--devices"), self.devices)
        loaded = read_profile_argument(model.load(profile, self.batch_size, len(cluster.devices)), self.input_share)
        self.machines.require_judged_profile(loaded)
        self.machines.require_gpus(loaded)
        return Request(
            profile=loaded,
            cluster=cluster,
            batch_size=self.batch_size,
            schedules=names,
            depths=None if self.depth is None else counts(self.depth, "--depth", 1),
            chunks=counts(self.chunks, "--chunks", 1),
            recomputes={"no": (False,), "yes": (True,), "both": (False, True)}[self.recompute],
            compressions=_COMPRESSIONS[self.compression],
            fewer=self.fewer,
            convert_bytes_per_s=self.convert,
            network=self.network,
        )

    def untried(self) -> list[str]:
        """Return a line on untried schedules if none was named, or nothing."""
        if self.schedules is not None:
            return []
        from pipesched.workflows.planning import untried_schedules

        names = self._names()
        others = ", ".join(untried_schedules(names, self.asynchronous))
        stale = "" if self.asynchronous else "; --asynchronous tries what trains on stale weights"
        return [f"not tried unless named, as -s 1f1b,zbv: {others}{stale}"]

    def _names(self) -> tuple[str, ...]:
        from pipesched.workflows.planning import plannable_schedules

        names = None if self.schedules is None else schedule_names(self.schedules)
        if names == ():
            raise InputError(f"--schedules: got {self.schedules!r}, expected names; try 1f1b,zb_h1")
        return plannable_schedules(names, self.asynchronous)
