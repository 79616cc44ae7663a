"""Products of matrices and attention by shape, and the error of a curve that is fitted to half of them."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_rows.card import Card
from gpu_rows.row import Row
from pipesched.profiles import Dtype
from pipesched.profiles.io import gpu_names
from pipesched.workflows.measuring import fit_gpu, profile_kernels

DTYPE: Dtype = "bfloat16"
"""Number type on a GPU; a dry run measures float32."""


def lines(card: Card) -> Iterator[str]:
    """Yield the lines of this row's section."""
    measured = profile_kernels(card.kind, card.pick(DTYPE, "float32"), repeats=card.pick(10, 1))
    sheet = sheet_of(measured.device)
    if sheet is None:
        yield f"No data sheet of {measured.device}, so no curve is fitted."
    else:
        fitted = fit_gpu(measured, sheet)
        yield f"A curve from the sheet `{sheet}`, fitted to half of the kernels; errors of the other half, absolute."
        yield ""
        yield "| kernel | held out | median | 90th percentile |"
        yield "|---|---|---|---|"
        for row in fitted.to_rows():
            errors = f"{row['median_absolute_error']:.1%} | {row['absolute_error_p90']:.1%}"
            yield f"| {row['kernel']} | {row['held_out']} | {errors} |"
        yield ""
        yield f"`{fitted.gpu.kernels}`"
    yield ""
    yield "| op | m | n | k | time | TFLOP/s |"
    yield "|---|---|---|---|---|---|"
    for kernel in measured.to_rows():
        shape = " | ".join(str(kernel[name]) for name in ("op", "m", "n", "k"))
        yield f"| {shape} | {kernel['seconds'] * 1e6:.1f} us | {kernel['tflops']:.3g} |"


def sheet_of(device: str) -> str | None:
    """Return the name of the data sheet of a device, as h100 of NVIDIA H100 80GB HBM3, or None."""
    words = device.lower().replace("-", " ").split()
    return next((name for name in gpu_names() if name in words), None)


ROW = Row("Efficiency by shape", "held-out error of products at most 10 %", 40.0, lines)
