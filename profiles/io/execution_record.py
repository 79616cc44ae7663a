"""The file form of the settings under which layers are computed, in profiles and plans."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from pipesched.profiles.costs import LayerExecution
from pipesched.profiles.io.validation import Record


class ExecutionRecord(Record):
    """How layers are computed (default: by one GPU each, without options)."""

    becomes: ClassVar[type] = LayerExecution

    tensor_parallel: Annotated[int, Field(ge=1, le=65_536)] = 1
    sequence_parallel: bool = False
    selective_recompute: bool = False
    flash_attention: bool = False
