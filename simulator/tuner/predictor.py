"""AvgPipe's predictor: all settings from the measurement of one setting (PPoPP 2023, section 5.2, Eq. 1-8).

With M = m, N = n in the profile and M = m', N = n' asked for, for each device k of K:

    T_gpu'    = (m' n) / (m n') (T_gpu + integral of max((m n') / (m' n) phi(t) - 1, 0) dt)                      (2)
    T_com'    = n' / (m' n) T_tot + (m' - 1) / m' max(n' / n T_tot - T_gpu', 0)                                  (4)
    T_up'_k   = T_up'_{k-1} + (T_tot'_{k-1} + T_gpu'_{k-1}) / m', of the first 0;  T_tot' = n' / n T_tot         (6)
    T_down'_k = T_down'_{k+1} + (T_tot'_{k+1} + T_gpu'_{k+1}) / m', of the last 0                                (7)
    T'        = T_gpu' + T_com' + T_up' + T_down'                                                             (1, 5)
    F'        = n' / n F_mod + (m n') / (m' n) F_dat                                                             (8)

T_gpu are the seconds that the device computes, phi(t) its utilisation meanwhile, T_tot the seconds of all messages to
it, F_mod the bytes of the models, F_dat the bytes of data. (2) shares its seconds out among the n' batches that are
under way at once; (4), (6) and (7) do not. So there are two ways to account:

    paper        as printed
    consistent   all terms for an iteration, in which every pipeline does a batch; a batch takes 1 / n' of it. In
                 (8) the reference model, a part of F_mod in the paper, counts once for any number of pipelines above
                 one, and so does an update per pipeline, which the paper leaves out. If a pipeline has f
                 micro-batches in flight in the profile, min(f, m') are in flight. If all m' are in flight, no
                 backward is over at the peak: the peak has either no gradients, or one micro-batch less

For one pipeline in the profile and in the prediction both give the same seconds, and for m' > f the same bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Span, Timeline
from pipesched.schedules.ops import Phase, Recv, computes, stages_of_op
from pipesched.simulator import SimulationError
from pipesched.simulator.memory import peak_memory

_MODEL_KINDS = ("weights", "weight_versions", "gradients", "optimizer")


class Accounting(StrEnum):
    """A reading of AvgPipe's equations: as printed, or with all terms per iteration."""

    PAPER = "paper"
    CONSISTENT = "consistent"


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One device in the measured iteration, in which each of n pipelines did a batch.

    Attributes:
        curve: phi(t) as (seconds, utilisation) pieces, all above 0; their seconds add up to the computing time of the
            device.
        transfer_s: Seconds of all messages to the device.
        model_bytes: Weights, gradients and optimizer states of the n models, without the reference and updates.
        reference_bytes: Bytes of one reference model, even if the profile has none; the gradients of a model take the
            same bytes.
        data_bytes: Activations and buffers.
        gradient_bytes: Gradients in `model_bytes`.
        in_flight: f, the most micro-batches whose activations one pipeline keeps.
    """

    curve: tuple[tuple[float, float], ...]
    transfer_s: float
    model_bytes: int = 0
    reference_bytes: int = 0
    data_bytes: int = 0
    gradient_bytes: int = 0
    in_flight: int = 1

    @property
    def compute_s(self) -> float:
        """T_gpu of all n batches together [s]."""
        return sum(seconds for seconds, _ in self.curve)


@dataclass(frozen=True, slots=True)
class SettingProfile:
    """The profile of the measured setting: m micro-batches per batch, and n pipelines."""

    num_microbatches: int
    num_pipelines: int
    devices: tuple[DeviceProfile, ...]

    def slowed(self, factor: float) -> SettingProfile:
        """Return the profile with all work `factor` times as long, as on a shared core; messages keep their times."""
        devices = [
            replace(device, curve=tuple((seconds * factor, phi) for seconds, phi in device.curve))
            for device in self.devices
        ]
        return replace(self, devices=tuple(devices))


@dataclass(frozen=True, slots=True)
class DevicePrediction:
    """The four terms of the time of a batch on one device [s], and the memory of the device."""

    compute_s: float
    blocked_s: float
    upstream_s: float
    downstream_s: float
    held_bytes: float

    @property
    def seconds(self) -> float:
        """T' of Eq. 1 [s]."""
        return self.compute_s + self.blocked_s + self.upstream_s + self.downstream_s


@dataclass(frozen=True, slots=True)
class SettingPrediction:
    """The predicted time and memory of a setting."""

    devices: tuple[DevicePrediction, ...]

    @property
    def seconds(self) -> float:
        """The seconds of a batch, on the device that takes longest [s]."""
        return max(device.seconds for device in self.devices)

    @property
    def held_bytes(self) -> float:
        """The bytes on the device that holds most."""
        return max(device.held_bytes for device in self.devices)


def profile_setting(timeline: Timeline, costs: StageCosts, num_pipelines: int) -> SettingProfile:
    """Extract the inputs of the equations from an iteration, predicted or measured.

    The utilisation of a device is the sum over its running ops, and never above 1: a profile of an
    overused device says too little of settings that use it less (section 5.2.1), so few pipelines and many
    micro-batches make the best one.

    Args:
        timeline: Timeline of `num_pipelines` pipelines, each with its own batch; with memory samples, for Eq. 8.
        costs: Costs with the utilisation and the weights of the stages.
        num_pipelines: n.

    Raises:
        SimulationError: There are no micro-batches, or not equally many for each pipeline.
    """
    microbatches = {part.microbatch for span in timeline.spans for part in computes(span.op)}
    num_each, left = divmod(len(microbatches), num_pipelines)
    if left or not microbatches:
        raise SimulationError(
            f"{timeline.name}: got {len(microbatches)} micro-batches of {num_pipelines} pipelines, expected the same "
            "number of each; use the Timeline of this setting"
        )
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans[timeline.rank_to_device[span.rank]].append(span)
    peaks = peak_memory(timeline.memory)
    devices = []
    for device in timeline.devices:
        device_spans = spans[device]
        stages = {part.stage for span in device_spans for part in computes(span.op)}
        held = dict(peaks[device].bytes_by_kind) if device in peaks else {}
        model_bytes = sum(held.get(kind, 0) for kind in _MODEL_KINDS)
        devices.append(
            DeviceProfile(
                curve=_curve((span for span in device_spans if span.is_work), costs),
                transfer_s=sum(span.end_s - span.start_s for span in device_spans if isinstance(span.op, Recv)),
                model_bytes=model_bytes,
                reference_bytes=sum(costs.stages[stage].weight_bytes for stage in stages),
                data_bytes=sum(held.values()) - model_bytes - held.get("reference", 0) - held.get("updates", 0),
                gradient_bytes=held.get("gradients", 0),
                in_flight=_in_flight(device_spans),
            )
        )
    return SettingProfile(num_each, num_pipelines, tuple(devices))


def _in_flight(spans: Iterable[Span]) -> int:
    """Return the most micro-batches whose activations one rank of a device keeps."""
    by_rank: defaultdict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_rank[span.rank].append(span)
    most = 1
    for its in by_rank.values():
        ops = [computes(span.op) for span in its]
        rebuilt = {(part.stage, part.microbatch) for parts in ops for part in parts if part.phase is Phase.RECOMPUTE}
        kept = 0
        for parts in ops:
            kept += sum(
                part.phase is Phase.RECOMPUTE
                or (part.phase is Phase.FORWARD and (part.stage, part.microbatch) not in rebuilt)
                for part in parts
            )
            most = max(most, kept)
            kept -= sum(part.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT) for part in parts)
    return most


def _curve(works: Iterable[Span], costs: StageCosts) -> tuple[tuple[float, float], ...]:
    """Return (seconds, utilisation) for each stretch of time in which something runs."""
    changes: list[tuple[float, int, float]] = []
    for span in works:
        utilisation = _utilisation(span, costs)
        changes += [(span.start_s, 1, utilisation), (span.end_s, -1, -utilisation)]
    changes.sort()
    pieces = []
    running, total, since_s = 0, 0.0, 0.0
    for time_s, count, utilisation in changes:
        if running and time_s > since_s:
            pieces.append((time_s - since_s, min(1.0, total)))
        running, since_s = running + count, time_s
        total = total + utilisation if running else 0.0  # and not a rounding beside it
    return tuple(pieces)


def _utilisation(span: Span, costs: StageCosts) -> float:
    return min(1.0, sum(costs.stages[stage].utilisation for stage in stages_of_op(span.op)))


def predict_setting(
    profile: SettingProfile, num_microbatches: int, num_pipelines: int, accounting: Accounting = Accounting.PAPER
) -> SettingPrediction:
    """Predict another setting from the one that was measured.

    Args:
        profile: Profile of one setting, the devices in order of the pipeline.
        num_microbatches: m', of a batch.
        num_pipelines: n'.
        accounting: See the top of this file.

    Raises:
        SimulationError: A count is below 1.
    """
    if num_microbatches < 1 or num_pipelines < 1:
        raise SimulationError(
            f"predictor: got M = {num_microbatches}, N = {num_pipelines}, expected at least 1 of each; try 1"
        )
    m, n, devices = num_microbatches, num_pipelines, profile.devices
    batches = n if accounting is Accounting.CONSISTENT else 1  # whose seconds are added up, but for (2) as printed
    computed_s = [_computed_s(device, profile, m, n) * batches for device in devices]
    transfer_s = [n / profile.num_pipelines * device.transfer_s for device in devices]
    each_s = [(transfer + compute) / m for transfer, compute in zip(transfer_s, computed_s, strict=True)]
    upstream_s = list(accumulate(each_s[:-1], initial=0.0))
    downstream_s = list(accumulate(each_s[:0:-1], initial=0.0))[::-1]
    return SettingPrediction(
        tuple(
            DevicePrediction(
                compute_s=compute / batches,
                blocked_s=(transfer / m + (m - 1) / m * max(transfer - compute, 0.0)) / batches,
                upstream_s=up / batches,
                downstream_s=down / batches,
                held_bytes=_held_bytes(device, profile, m, n, accounting),
            )
            for device, compute, transfer, up, down in zip(
                devices, computed_s, transfer_s, upstream_s, downstream_s, strict=True
            )
        )
    )


def _computed_s(device: DeviceProfile, profile: SettingProfile, m: int, n: int) -> float:
    """Return T_gpu' of Eq. 2 for one batch [s]; T_gpu and the integral are 1 / n of the values of an iteration."""
    ratio = profile.num_microbatches * n / (m * profile.num_pipelines)
    overused_s = sum(seconds * max(ratio * phi - 1.0, 0.0) for seconds, phi in device.curve)
    return (device.compute_s + overused_s) / profile.num_pipelines / ratio


def _held_bytes(device: DeviceProfile, profile: SettingProfile, m: int, n: int, accounting: Accounting) -> float:
    """Return F' of Eq. 8, the bytes that a device holds."""
    more = n / profile.num_pipelines
    data = profile.num_microbatches / m * more * device.data_bytes
    match accounting:
        case Accounting.CONSISTENT:
            models = more * (device.model_bytes - device.gradient_bytes)
            models += (1 + n) * device.reference_bytes if n > 1 else 0
            return models + _growing_bytes(data, n * device.reference_bytes, device.in_flight, m)
        case Accounting.PAPER:
            has_reference = profile.num_pipelines > 1
            return more * (device.model_bytes + (device.reference_bytes if has_reference else 0)) + data


def _growing_bytes(data: float, gradients: float, in_flight: int, m: int) -> float:
    """Return the bytes of m' micro-batches besides the models; `data` is the bytes of `in_flight` micro-batches."""
    if m > in_flight:
        return data + gradients
    return max(m / in_flight * data, (m - 1) / in_flight * data + gradients)
