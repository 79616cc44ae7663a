"""The names of the device and of the libraries of a measurement."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """Return the product name of the processor or accelerator."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def library_versions() -> tuple[tuple[str, str], ...]:
    """Return (name, version) of the libraries that affect speed."""
    return (("python", platform.python_version()), ("torch", str(torch.__version__)))
