"""How fast a machine was beside a measurement, as files of profiles and plans have it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from pipesched.profiles import DeviceKind
from pipesched.profiles.io.validation import Count, Record
from pipesched.schedules import Yardstick


class YardstickRecord(Record):
    """What a fixed kernel took just before and just after the measurement."""

    becomes: ClassVar[type] = Yardstick

    device: DeviceKind
    num_busy: Count
    kernel_s: Annotated[float, Field(gt=0, le=1e12)]
