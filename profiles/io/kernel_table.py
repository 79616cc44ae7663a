"""A table of measured kernels as CSV: products of matrices and attention, a row each.

The columns are ``op, batch, m, n, k``, then ``seconds``, or ``efficiency`` and ``peak_tflops``, as SimuMax publishes
them; the share counts causal attention in full. ``op`` is

    matmul             `batch` products (m, k) x (k, n)
    sdp_fwd, sdp_bwd   causal attention of `batch` samples: m tokens, n heads, k heads of keys and values

Other words are read and ignored. Further columns are optional: ``precision`` (default: bfloat16), ``out_dtype`` (fp32
or another; default: the precision), ``accumulate`` (True adds to the output), and ``layout``, where ``qk192 v128``
gives the widths of the heads of attention (default: 128), and ``gpu``, the device. All others are ignored.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, get_args

from pipesched.profiles import FLOAT32_BYTES, ProfileError
from pipesched.profiles.costs import LINEAR_BYTES, MatmulPrecision
from pipesched.profiles.inside_stage import MeasuredKernel, Operator
from pipesched.profiles.io.faults import require_no_faults
from pipesched.profiles.io.loading import read_profile_text, write_profile_text
from pipesched.schedules.common import shown, written_number

NEEDED_COLUMNS = ("op", "batch", "m", "n", "k")
"""Columns that every table has."""
WRITTEN_COLUMNS = ("gpu", *NEEDED_COLUMNS, "layout", "accumulate", "out_dtype", "precision", "seconds", "tflops")
"""Columns of the tables that are written."""
_PRECISIONS: tuple[MatmulPrecision, ...] = get_args(MatmulPrecision)
_LARGEST = 2**31
"""Largest size of a kernel."""
_HEAD = 128
"""Width of a head of attention without a layout."""


class KernelTable(NamedTuple):
    """The kernels of a table.

    Attributes:
        kernels: Products of matrices and attention.
        ignored: Number of rows of other kernels.
        devices: Names of the devices of the rows, sorted; none in a table without the column.
    """

    kernels: tuple[MeasuredKernel, ...]
    ignored: int
    devices: tuple[str, ...] = ()


def load_kernel_table(path: str | Path) -> KernelTable:
    """Read a table of measured kernels.

    Raises:
        ProfileError: The file cannot be read or is invalid; the message names row (the header is row 1) and column.
    """
    file = str(path)
    reader = csv.DictReader(read_profile_text(path).splitlines(), strict=True, skipinitialspace=True, restval="")
    try:
        names = reader.fieldnames or ()
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ProfileError(f"{file}: got {error}, expected comma-separated values; check the quotes") from error
    missing = [name for name in NEEDED_COLUMNS if name not in names]
    if "seconds" not in names and not {"efficiency", "peak_tflops"} <= set(names):
        missing.append("seconds")
    if missing:
        raise ProfileError(
            f"{file}: row 1: got no column {', '.join(missing)}, expected {', '.join(NEEDED_COLUMNS)}, seconds; "
            "measure a table of this machine"
        )
    faults: list[str] = []
    kernels = [_kernel(number, row, faults) for number, row in rows]
    require_no_faults(file, faults, "correct the table, or measure it again")
    known = tuple(kernel for kernel in kernels if kernel is not None)
    devices = sorted({row.get("gpu", "").strip() for _, row in rows} - {""})
    return KernelTable(known, len(kernels) - len(known), tuple(devices))


def kernel_cells(kernel: MeasuredKernel, gpu: str) -> dict[str, object]:
    """Return the cells of a kernel by column."""
    operator = kernel.operator
    is_product = operator.kind == "matmul"
    words = {"matmul": "matmul", "attention": "sdp_fwd", "attention_backward": "sdp_bwd"}
    return {
        "gpu": gpu,
        "op": words[operator.kind],
        "batch": operator.batch,
        "m": operator.rows,
        "n": operator.columns,
        "k": operator.inner if is_product else operator.columns,
        "layout": "TN" if is_product else f"qk{operator.inner} v{operator.inner}",
        "accumulate": False,
        "out_dtype": {"float32": "fp32", "float16": "fp16"}.get(kernel.precision, "bf16"),
        "precision": kernel.precision,
        "seconds": f"{kernel.seconds:.6g}",
        "tflops": f"{operator.flops / kernel.seconds / 1e12:.6g}",
    }


def save_kernel_table(kernels: Iterable[MeasuredKernel], gpu: str, path: str | Path) -> None:
    """Write measured kernels as CSV for `load_kernel_table`, completely or not at all.

    Args:
        kernels: Products of matrices, and causal attention with equal widths of heads for queries and values.
        gpu: Name of the device.
        path: Path of the file.

    Raises:
        ProfileError: The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, WRITTEN_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(kernel_cells(kernel, gpu) for kernel in kernels)
    write_profile_text(path, text.getvalue())


def product_operator(
    batch: int, rows: int, columns: int, inner: int, element_bytes: float = 2, result_bytes: int = 2
) -> Operator:
    """Return the operator of `batch` matrix products (rows, inner) x (inner, columns).

    Args:
        batch: Number of products.
        rows: Rows of the first factor.
        columns: Columns of the second factor.
        inner: Length of the dimension that is summed over.
        element_bytes: Bytes of an element of the factors.
        result_bytes: Bytes of an element of the result.
    """
    num_bytes = batch * (round(element_bytes * inner * (rows + columns)) + result_bytes * rows * columns)
    flops = 2 * batch * rows * columns * inner
    return Operator("product", "matmul", flops, num_bytes, 0, batch, rows, columns, inner, is_linear=True)


def attention_operator(
    samples: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    width: int,
    value_width: int,
    element_bytes: int = 2,
    *,
    backward: bool = False,
) -> Operator:
    """Return the operator of causal attention.

    Its operations are half of the square of attention. It moves its inputs, its results and float32 sums.

    Args:
        samples: Number of samples.
        tokens: Tokens of a sample.
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        width: Width of a head of queries and keys.
        value_width: Width of a head of values.
        element_bytes: Bytes of an element.
        backward: Whether the kernel is the backward.
    """
    flops = samples * heads * tokens**2 * (width + value_width)
    moved = (heads + kv_heads) * (width + value_width)
    num_bytes = samples * tokens * (element_bytes * moved + FLOAT32_BYTES * heads)
    forward = Operator("attention", "attention", flops, num_bytes, 0, samples, tokens, heads, width)
    if not backward:
        return forward
    return Operator("attention", "attention_backward", 5 * flops // 2, 2 * num_bytes, 0, samples, tokens, heads, width)


def _kernel(number: int, row: Mapping[str, str], faults: list[str]) -> MeasuredKernel | None:
    """Return the kernel of a row, or None for another kernel; a bad cell is added to `faults`."""
    word = row["op"].strip()
    if word not in ("matmul", "sdp_fwd", "sdp_bwd"):
        return None
    before = len(faults)
    batch, m, n, k = (_size(number, name, row[name], faults) for name in ("batch", "m", "n", "k"))
    precision = next((name for name in _PRECISIONS if name == (row.get("precision") or "bfloat16").strip()), None)
    if precision is None:
        expected = ", ".join(_PRECISIONS)
        faults.append(f"row {number}, column precision: got {shown(row['precision'])}, expected one of {expected}")
    seconds, share, rate = None, math.nan, math.nan
    if row.get("seconds", "").strip() or "efficiency" not in row:
        seconds = _number(number, "seconds", row["seconds"], faults)
    else:
        share = _number(number, "efficiency", row.get("efficiency", ""), faults)
        rate = 1e12 * _number(number, "peak_tflops", row.get("peak_tflops", ""), faults)
    if len(faults) > before or precision is None:
        return None
    element = FLOAT32_BYTES if precision == "float32" else LINEAR_BYTES.get(precision, 2)
    if word == "matmul":
        is_wide = (row.get("out_dtype") or precision) in ("fp32", "float32")
        result = (FLOAT32_BYTES if is_wide else 2) * (2 if row.get("accumulate", "") == "True" else 1)
        operator, counted = product_operator(batch, m, n, k, element, result), 1
    else:
        widths = re.search(r"qk([0-9]{1,6}) v([0-9]{1,6})", row.get("layout") or "")
        width, value_width = (int(widths[1]), int(widths[2])) if widths else (_HEAD, _HEAD)
        operator = attention_operator(
            batch,
            m,
            n,
            k,
            width,
            value_width,
            FLOAT32_BYTES if precision == "float32" else 2,
            backward=word == "sdp_bwd",
        )
        counted = 2
    return MeasuredKernel(
        operator, precision, counted * operator.flops / (share * rate) if seconds is None else seconds
    )


def _size(number: int, name: str, cell: str, faults: list[str]) -> int:
    cell = cell.strip()
    if cell.isascii() and cell.isdigit() and len(cell) < len(str(_LARGEST)) and int(cell):
        return int(cell)
    faults.append(f"row {number}, column {name}: got {shown(cell)}, expected a whole number from 1 below {_LARGEST}")
    return 1


def _number(number: int, name: str, cell: str, faults: list[str]) -> float:
    value = written_number(cell)
    if not 0 < value < math.inf:
        faults.append(f"row {number}, column {name}: got {shown(cell)}, expected a number above 0")
        return 1.0
    return value
