"""A GPU as JSON: the figures of its data sheet, as in the files of `data/gpus`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipesched.profiles.clusters import Gpu
from pipesched.profiles.io.validation import Bytes, Record, Text, parse_record

_Rate = Annotated[float, Field(gt=0, le=1e24)]


class _Gpu(Record):
    memory_bytes: Annotated[Bytes, Field(gt=0)]
    flops_per_s: Annotated[dict[Annotated[str, Field(max_length=40)], _Rate], Field(min_length=1, max_length=20)]
    memory_bandwidth_bytes_per_s: _Rate
    link_bandwidth_bytes_per_s: _Rate
    efficiency: Annotated[float, Field(gt=0, le=1)]
    origin: Text = ""


def read_gpu(text: str, file: str, name: str) -> Gpu:
    """Return the GPU in `text`, called `name`.

    Raises:
        ProfileError: The text is no GPU; names `file`, the place, the actual and the expected value.
    """
    return Gpu(name, **dict(parse_record(_Gpu, text, file, "see profiles/data/gpus/h100.json")))
