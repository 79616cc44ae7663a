"""Profiles that need no measurement here: of known costs, of runs, or estimated for a GPU; and their result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.profiles.clusters import Cluster, Gpu, Link
from pipesched.profiles.costs import (
    LayerCosts,
    Profile,
    fitted_profile,
    profile_of_costs,
)
from pipesched.profiles.inside_stage import Fabric, ModelShape, estimated_profile, fabric_of
from pipesched.profiles.io import (
    costs_model,
    gpu_names,
    load_gpu,
    load_layer_costs,
    load_machine,
    model_shape,
    profile_text,
    save_json,
)
from pipesched.questions import (
    USUAL_SIZES,
    EstimateSettings,
    ProfiledSizes,
    RunFacts,
)
from pipesched.schedules.common import tuple_of, values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import views
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.workflows import (
    ArgumentError,
    Result,
    Table,
    asks,
    estimate_notes,
    require_at_least,
    require_choice,
    require_kind,
    require_path,
    require_some,
    unitless_times,
    with_equal_in_one,
)
from pipesched.workflows.arguments import (
    ProfileArgument,
    load_costs,
    read_profile_argument,
)
from pipesched.workflows.measuring.measured_costs import RunsArgument, costs_from_runs, cut_of_runs, lists_of_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, repr=False)
class ProfileMeasurement(Result):
    """The profile of a model, measured or estimated according to its provenance.

    Attributes:
        profile: Seconds and bytes of every layer at each size, for `simulate`, `compare`, `run` and `verify`.
        notes: Cautions about the seconds, a line each.
    """

    profile: Profile
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ProfileMeasurement({self.profile.model!r}, microbatch_sizes={self.profile.microbatch_sizes})"

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON.

        Raises:
            ArgumentError: `path` is no name of a file.
            ProfileError: The file cannot be written.
        """
        save_json(self.profile, require_path(path))

    def to_json(self) -> str:
        """Return the text that `save` writes."""
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
        return views.profile_figure(self.profile)

    def table(self) -> Table:
        """Return a row per layer at the largest size, equal neighbours in one, formatted for people."""
        rows = [
            {
                "layer": f"{index} {layer.name}",
                "forward": readable_s(layer.measurements[-1].forward_s),
                "backward": readable_s(layer.measurements[-1].backward_s),
                "weights": readable_bytes(layer.weight_bytes),
                "saved": readable_bytes(layer.measurements[-1].saved_bytes),
                "output": readable_bytes(layer.measurements[-1].output_bytes),
                "step": readable_s(layer.step_s),
                "copy": "-" if layer.work is None else readable_s(layer.work.copy_s),
                "predict": "-" if layer.work is None else readable_s(layer.work.predict_s),
                "average": "-" if layer.work is None else readable_s(layer.work.average_s),
            }
            for index, layer in enumerate(self.profile.layers)
        ]
        title = f"{self.profile.model}, micro-batches of {self.profile.microbatch_sizes[-1]}"
        prices = [
            f"{price.factor:.3g} times the processor time where {price.num_processes} processes share a core"
            for price in self.profile.sharing
        ]
        return Table(title, with_equal_in_one(rows, " to "), "; ".join([self.profile.provenance.device, *prices]))


def profile_of_layers(
    costs: LayerCosts | str | Path,
    microbatch_size: int = 1,
    microbatch_sizes: Sequence[int] | None = None,
    *,
    input_share: float | None = None,
) -> ProfileMeasurement:
    """Return a profile of layers with given costs, for `tune`, `plan`, `partition` and all others.

    Args:
        costs: Costs of the layers, or a table of them (.csv).
        microbatch_size: Samples of the micro-batch of the costs.
        microbatch_sizes: Other sizes in samples. Seconds, messages and saved bytes are scaled in proportion to the
            samples; in reality small sizes take more time per sample. None: no other sizes.
        input_share: Share of B that I takes in costs with B alone; W takes the rest. None: no split is assumed.

    Raises:
        ArgumentError: An argument makes no sense.
        ProfileError: The file is bad, or a profile cannot express the costs: an overlap, an R unlike F, or a W that
            holds another number of bytes than F saved.
    """
    require_kind("costs", costs, LayerCosts | str | Path, "LayerCosts, or a table of them")
    microbatch_size = require_at_least("microbatch_size", microbatch_size, 1)
    sizes = (
        ()
        if microbatch_sizes is None
        else tuple(
            require_at_least("microbatch_sizes", size, 1)
            for size in require_some("microbatch_sizes", microbatch_sizes, "[1]")
        )
    )
    loaded = load_costs(costs) if isinstance(costs, LayerCosts) else load_layer_costs(costs)
    assert isinstance(loaded, LayerCosts), "as just asked"
    profile = profile_of_costs(loaded, costs_model(loaded.origin), microbatch_size, sizes)
    return ProfileMeasurement(read_profile_argument(profile, input_share), tuple(unitless_times(loaded)))


@dataclass(frozen=True)
class RunProfileQuestion(RunFacts):
    """The question of `profile_from_runs`; its fields are the arguments of that function."""

    runs: RunsArgument
    profile: ProfileArgument


@asks(RunProfileQuestion)
def profile_from_runs(question: RunProfileQuestion) -> ProfileMeasurement:
    """Return a profile with the mean seconds of the stages of runs: F, B, I, W and Step.

    Each layer of a stage is scaled alike, at every micro-batch size. If no run had I and W,
    they are scaled as B. If no run had a Step, its seconds do not change. Bytes, copies of weights and the slowdown of
    shared cores do not change. Hand-over and messages are no costs of layers: `costs_from_runs` has them.

    Args:
        runs: Measured Timelines of the model, or files of them, all cut into the same stages.
        profile: Profile of the model, measured anywhere, or estimated.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ScheduleError: A file is no Timeline.
        ProfileError: A Timeline is not measured, or has other stages; or the profile does not fit.
    """
    measured = costs_from_runs(question.runs, profile=question.profile, **values_of(question))
    costs = measured.costs
    base, bounds, size = cut_of_runs(lists_of_runs(question.runs), question.profile, question)
    fitted = fitted_profile(base, bounds, costs.measured_costs, size)
    device = f"{base.provenance.device}, with the seconds of {', '.join(costs.runs)}"
    return ProfileMeasurement(
        replace(
            fitted,
            provenance=replace(base.provenance, device=device[:2000], yardstick=costs.yardstick),
            variation=costs.variation or base.variation,
        ),
        measured.notes,
    )


@dataclass(frozen=True, kw_only=True)
class AnalyticQuestion(EstimateSettings):
    """The question of `analytic_profile`; its fields are the arguments of that function."""

    model: str | Path | ModelShape = field(kw_only=False)
    gpu: str | Path | Gpu = field(kw_only=False)
    microbatch_sizes: ProfiledSizes = field(default=None, kw_only=False)
    machine: str | Path | Cluster | None = None


@asks(AnalyticQuestion)
def analytic_profile(question: AnalyticQuestion) -> ProfileMeasurement:
    """Estimate seconds and bytes of every layer of a transformer, from its operators and the data sheet of a GPU.

    The costs are of one GPU; a device of a pipeline is the group of GPUs that share its layers. The page
    docs/inside_a_stage.md explains the estimate.

    Args:
        model: A preset, as ``llama3-70b``; a configuration, as ``hf:path/config.json``; free numbers, as
            ``transformer:layers=32,hidden=4096,..``; ``gpt:layers=96,width=12288,..``; or a ModelShape.
        gpu: ``v100``, ``a100``, ``a100-40gb``, ``h100``, ``h100-96gb``, ``h200``, ``h20``, ``h800``, ``b200``,
            ``b300``, ``gb200``, ``gb300``, ``mi300x``, ``mi355x``, ``a10``, ``l4``, ``l40s``, a file (.json), or a Gpu.
        machine: Node of the GPUs, for the links of the GPUs of a stage: a name, as ``dgx-h100``, a file (.json), or a
            Cluster (default: the usual node of the GPU, with the link of its data sheet).

    Raises:
        ArgumentError: An argument makes no sense.
        ProfileError: The model does not exist, the GPUs cannot share its layers, or the data sheet of the GPU lacks a
            number that is needed.
    """
    require_kind("model", question.model, str | Path | ModelShape, "the name of a model; try llama3-70b")
    shape = question.model if isinstance(question.model, ModelShape) else model_shape(question.model)
    if question.has_sequence and question.tensor == 1:
        raise ArgumentError("has_sequence: got True with tensor parallelism of 1, expected at least 2; try `tensor=2`")
    gpu = read_gpu_argument(question.gpu)
    sizes = sorted(set(tuple_of(question.microbatch_sizes or USUAL_SIZES)))
    fabric = _fabric(question.machine, gpu, question.num_gpus)
    estimated = estimated_profile(shape, question.sharding, gpu, fabric, sizes, question.optimizer)
    return ProfileMeasurement(estimated, tuple(estimate_notes(estimated)))


def read_gpu_argument(gpu: str | Path | Gpu) -> Gpu:
    """Return the GPU of a name or a file.

    Raises:
        ArgumentError: There is no GPU of this name.
        ProfileError: The file is invalid.
    """
    if isinstance(gpu, Gpu):
        return gpu
    if not isinstance(gpu, str | Path) or suffix_of(gpu) != ".json":
        gpu = gpu.lower() if isinstance(gpu, str) else gpu
        require_choice("gpu", gpu, (*gpu_names(), "a file (.json)"))
    return load_gpu(gpu)


def _fabric(machine: str | Path | Cluster | None, gpu: Gpu, num_gpus: int) -> Fabric:
    """Return the links of a GPU, from its node; one GPU alone needs no links."""
    require_kind(
        "machine", machine, str | Path | Cluster | None, "the name of a node, a file, or a Cluster; try dgx-h100"
    )
    if machine is not None and machine != gpu.machine:
        return fabric_of(machine if isinstance(machine, Cluster) else load_machine(machine))
    if num_gpus == 1:
        return Fabric(1, Link(), Link())
    if gpu.machine is None:
        raise ArgumentError(
            f"machine: got none, expected the node of the {num_gpus} GPUs of a stage, because the data sheet of "
            f"{gpu.name} has no node; try `machine=dgx-h100`"
        )
    fabric = fabric_of(load_machine(gpu.machine))
    return replace(fabric, intra=replace(fabric.intra, bandwidth_bytes_per_s=gpu.link_bandwidth_bytes_per_s))
