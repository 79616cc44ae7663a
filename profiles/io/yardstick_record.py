"""The speed of a machine beside a measurement, in files of profiles and plans."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from pipesched.profiles import DeviceKind
from pipesched.profiles.io.validation import Count, Record
from pipesched.schedules import Yardstick


class YardstickRecord(Record):
    """The time of a fixed kernel just before and just after the measurement."""

    becomes: ClassVar[type] = Yardstick

    device: DeviceKind
    num_busy: Count
    kernel_s: Annotated[float, Field(gt=0, le=1e12)]
