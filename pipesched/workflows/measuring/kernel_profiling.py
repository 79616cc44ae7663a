"""Kernels of this machine measured by shape, and the data sheet of a GPU with a curve that fits them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, get_args

from pipesched.executor import RunSettings
from pipesched.profiles import DeviceKind, Dtype, ProfileError
from pipesched.profiles.clusters import Gpu
from pipesched.profiles.inside_stage import FEWEST_PRODUCTS, MeasuredKernel, fit_kernels, kernel_errors
from pipesched.profiles.io import (
    gpu_names,
    gpu_text,
    kernel_cells,
    load_gpu,
    load_kernel_table,
    save_json,
    save_kernel_table,
)
from pipesched.questions import unheard
from pipesched.simulator.analysis import readable_s
from pipesched.workflows import (
    ArgumentError,
    Result,
    Table,
    require_at_least,
    require_choice,
    require_kind,
    require_path,
)
from pipesched.workflows.arguments import require_possible

if TYPE_CHECKING:
    import pandas as pd

_KINDS = {"matmul": "product of matrices", "attention": "attention", "attention_backward": "its backward"}

_GREAT_ERROR = 0.25
"""Median error of products above which the table is perhaps of another device."""


@dataclass(frozen=True, slots=True, repr=False)
class KernelMeasurement(Result):
    """Measured kernels of a device.

    Attributes:
        device: Name of the device.
        kernels: Products of matrices and attention, with their seconds.
        notes: Cautions, a line each.
    """

    device: str
    kernels: tuple[MeasuredKernel, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"KernelMeasurement({self.device!r}, kernels={len(self.kernels)})"

    def save(self, path: str | Path) -> None:
        """Write a row per kernel as CSV, for `fit_gpu`.

        Raises:
            ArgumentError: `path` is no name of a file.
            ProfileError: The file cannot be written.
        """
        save_kernel_table(self.kernels, self.device, require_path(path))

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per kernel, with seconds and FLOP/s."""
        return [
            kernel_cells(kernel, self.device)
            | {"seconds": kernel.seconds, "tflops": kernel.operator.flops / kernel.seconds / 1e12}
            for kernel in self.kernels
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the data that `--json` prints."""
        return {"device": self.device, "kernels": self.to_rows()}

    def to_frame(self) -> pd.DataFrame:
        """Return a row per kernel."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def table(self) -> Table:
        """Return a row per kernel, formatted for people."""
        rows = tuple(
            {
                "kernel": _KINDS[kernel.operator.kind],
                "m": str(kernel.operator.rows),
                "n": str(kernel.operator.columns),
                "k": str(kernel.operator.inner),
                "time": readable_s(kernel.seconds),
                "TFLOP/s": f"{kernel.operator.flops / kernel.seconds / 1e12:.4g}",
            }
            for kernel in self.kernels
        )
        precision = self.kernels[0].precision if self.kernels else ""
        legend = {"m": "rows, or tokens of attention", "n": "columns, or heads", "k": "inner size, or width of a head"}
        return Table(f"{self.device}, {precision}", rows, "medians", legend)


@dataclass(frozen=True, slots=True, repr=False)
class GpuFit(Result):
    """The data sheet of a GPU with a curve that was fitted to a table of its kernels.

    Attributes:
        gpu: The GPU.
        fitted: Kernels of the table that the curve was fitted to: every second one of each kind.
        held_out: The other kernels.
        notes: Cautions, a line each.
    """

    gpu: Gpu
    fitted: tuple[MeasuredKernel, ...]
    held_out: tuple[MeasuredKernel, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"GpuFit({self.gpu.name!r}, kernels={len(self.fitted)}, held_out={len(self.held_out)})"

    def save(self, path: str | Path) -> None:
        """Write the data sheet as JSON, for `--gpu`.

        Raises:
            ArgumentError: `path` is no name of a file.
            ProfileError: The file cannot be written.
        """
        save_json(self.gpu, require_path(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the data that `--json` prints: the GPU, and the errors of `to_rows`."""
        return {"gpu": json.loads(gpu_text(self.gpu)), "errors": self.to_rows()}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per kind of kernel: number and errors of the held-out kernels, as shares."""
        rows = []
        for kind, name in _KINDS.items():
            kernels = [kernel for kernel in self.held_out if kernel.operator.kind == kind]
            errors = kernel_errors(kernels, self.gpu)
            if errors:
                sizes = sorted(map(abs, errors))
                rows.append(
                    {
                        "kernel": name,
                        "fitted": sum(kernel.operator.kind == kind for kernel in self.fitted),
                        "held_out": len(errors),
                        "median_error": median(errors),
                        "median_absolute_error": median(sizes),
                        "absolute_error_p90": sizes[int(0.9 * len(sizes))],
                    }
                )
        return rows

    def to_frame(self) -> pd.DataFrame:
        """Return a row per kind of kernel, as `to_rows`."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def table(self) -> Table:
        """Return a row per kind of kernel: errors of the held-out kernels, formatted for people."""
        rows = tuple(
            {
                "kernel": row["kernel"],
                "fitted": str(row["fitted"]),
                "held out": str(row["held_out"]),
                "error": f"{row['median_error']:+.1%}",
                "absolute": f"{row['median_absolute_error']:.1%}",
                "90th percentile": f"{row['absolute_error_p90']:.1%}",
            }
            for row in self.to_rows()
        )
        curve = self.gpu.kernels
        assert curve is not None, "as it was fitted"
        caption = (
            f"products reach {curve.matmul * self.gpu.efficiency:.3g} of the peak, memory {curve.memory:.3g} of its "
            f"bandwidth; a launch takes {readable_s(curve.launch_s)}"
        )
        legend = {"error": "(predicted - measured) / measured of the kernels that were held out, median"}
        return Table(f"{self.gpu.name}: kernels predicted and measured", rows, caption, legend)


def profile_kernels(
    device: DeviceKind = "cpu",
    dtype: Dtype = "float32",
    *,
    threads: int = 1,
    repeats: int = 10,
    warmup: int = 3,
    seed: int = 0,
    progress: Callable[[float], None] = unheard,
) -> KernelMeasurement:
    """Measure products of matrices and attention on this machine, at the shapes of transformers of several sizes.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: Number type: ``float32``, ``bfloat16`` or ``float16``.
        threads: CPU threads of one operation.
        repeats: Measurements of a shape; the median counts.
        warmup: Measurements before them.
        seed: Seed of the numbers.
        progress: Takes the share of the work that is done.

    Raises:
        ArgumentError: The device does not exist, or an argument makes no sense.
    """
    require_choice("device", device, get_args(DeviceKind))
    require_choice("dtype", dtype, ("float32", "bfloat16", "float16"))
    threads = require_at_least("threads", threads, 1, 1024)
    repeats = require_at_least("repeats", repeats, 1)
    warmup = require_at_least("warmup", warmup, 0)
    seed = require_at_least("seed", seed, 0, 2**63 - 1)
    if not callable(progress):
        raise ArgumentError(f"progress: got {progress!r}, expected a function")
    require_possible(RunSettings(device=device))
    import torch

    from pipesched.profiles import measuring

    assert dtype != "float64", "as just asked"
    kernels = measuring.measure_kernels(
        device, dtype, threads=threads, repeats=repeats, warmup=warmup, seed=seed, progress=progress
    )
    return KernelMeasurement(measuring.device_name(torch.device(device)), tuple(kernels))


def fit_gpu(table: KernelMeasurement | str | Path, gpu: str | Path | Gpu) -> GpuFit:
    """Return the data sheet of a GPU with a curve of kernels that fits a table of measured ones.

    Every second kernel of each kind is fitted; the others show the error.

    Args:
        table: Measured kernels, or a file of them (.csv).
        gpu: Name of a GPU, a file (.json), or a Gpu: its peaks, bandwidth and multiprocessors, and the curve to start
            from.

    Raises:
        ArgumentError: An argument makes no sense.
        ProfileError: The table is bad or has too few kernels, a kernel is faster than the peak, or the data sheet
            lacks a number.
    """
    require_kind("table", table, KernelMeasurement | str | Path, "measured kernels, or a table of them (.csv)")
    require_kind("gpu", gpu, str | Path | Gpu, "the name of a GPU, a file (.json), or a Gpu")
    sheet = gpu if isinstance(gpu, Gpu) else load_gpu(gpu)
    notes: tuple[str, ...] = ()
    if isinstance(table, KernelMeasurement):
        kernels, origin, devices = table.kernels, table.device, [table.device]
    else:
        kernels, ignored, names = load_kernel_table(table)
        origin, devices = str(table), [*names]
        notes = (f"{ignored} rows of other kernels were not used",) if ignored else ()
    notes += _foreign(devices, sheet.name)
    by_kind = [[kernel for kernel in kernels if kernel.operator.kind == kind] for kind in _KINDS]
    if len(by_kind[0]) < 2 * FEWEST_PRODUCTS:
        raise ProfileError(
            f"{origin}: got {len(by_kind[0])} products of matrices, expected at least {2 * FEWEST_PRODUCTS}, of which "
            "half are fitted; measure more"
        )
    fitted, held_out = (tuple(kernel for kind in by_kind for kernel in kind[part::2]) for part in (0, 1))
    try:
        with_curve = fit_kernels(fitted, sheet)
        kernel_errors(held_out, with_curve)
    except ProfileError as error:
        raise ProfileError(f"{origin}: {error}") from error
    assert with_curve.kernels is not None, "as it was fitted"
    products = [kernel for kernel in held_out if kernel.operator.kind == "matmul"]
    share = median(map(abs, kernel_errors(products, with_curve)))
    if share > _GREAT_ERROR:
        notes += (
            (
                f"predicted matrix products are {share:.0%} off (median): the table may be of another device than "
                f"{sheet.name}"
            ),
        )
    words = f"fitted to half of the kernels of {origin}"[:500]
    curve = replace(with_curve.kernels, origin=words)
    return GpuFit(replace(with_curve, kernels=curve, origin=f"{sheet.origin[:1400]}; {words}"), fitted, held_out, notes)


def _foreign(devices: Sequence[str], gpu: str) -> tuple[str, ...]:
    """Return a note if a table was measured on other devices than `gpu`; none if `gpu` is a file."""
    if gpu not in gpu_names():
        return ()
    model = gpu.split("-")[0]  # a100-40gb is an A100
    others = [device for device in devices if model not in device.lower().replace(" ", "")]
    return (f"the table was measured on {', '.join(others)}: the fitted GPU is not a {gpu}",) if others else ()
