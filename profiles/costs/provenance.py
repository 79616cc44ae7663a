"""The provenance of a profile: the device and the settings under which layers were computed and measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pipesched.profiles import DeviceKind, OptimizerName
from pipesched.profiles.costs.sharding import LINEAR_BYTES, LayerSharding
from pipesched.schedules import Yardstick


@dataclass(frozen=True, slots=True)
class Provenance:
    """The provenance of a profile: device, settings and versions of its measurement or estimate.

    Attributes:
        device: Product name of the processor or GPU, or the source of the numbers.
        kind: Kind of the device: ``cpu`` or ``cuda``.
        dtype: Data type of the weights and activations.
        threads: Threads of one operation on the CPU.
        companions: Processes that ran the same model beside the measurement, as the ranks of a pipeline do.
        optimizer: The optimizer's name.
        warmup: Runs before the measured ones.
        repeats: Measured runs, whose medians are kept; 0 for estimated numbers.
        seed: Seed of weights and data.
        host_cores: Cores available to the measuring process.
        versions: (name, version) of the libraries.
        date: UTC, ISO 8601.
        sharding: Split and computation of the layers of an estimate; None for measured layers, each on one device.
        gpu_family: Family of the GPU of an estimate, as ``A100``; None for measured layers, or if unknown.
        yardstick: Speed of the machine during the measurement; None if unknown, as for estimates.
    """

    device: str
    dtype: str
    threads: int
    companions: int
    optimizer: str
    warmup: int
    repeats: int
    seed: int
    host_cores: int
    versions: tuple[tuple[str, str], ...]
    date: str
    kind: DeviceKind = "cpu"
    sharding: LayerSharding | None = None
    gpu_family: str | None = None
    yardstick: Yardstick | None = None


UNSAID = Provenance(
    device="an unknown device",
    dtype="not said",
    threads=0,
    companions=0,
    optimizer="not said",
    warmup=0,
    repeats=0,
    seed=0,
    host_cores=0,
    versions=(),
    date="not said",
)
"""The provenance of costs without one."""


def estimated_provenance(
    device: str, optimizer: OptimizerName, sharding: LayerSharding, gpu_family: str | None
) -> Provenance:
    """Return the provenance of an estimate for a GPU, with the present time; arguments are fields of `Provenance`."""
    return replace(
        UNSAID,
        device=device,
        dtype="bfloat16" if sharding.precision in LINEAR_BYTES else sharding.precision,
        optimizer=optimizer,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        kind="cuda",
        sharding=sharding,
        gpu_family=gpu_family,
    )
