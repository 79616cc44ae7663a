"""Files that people exchange: PyTorch's CSV, our JSON, Timelines."""

from pipesched.schedules.formats.schedule_json import from_json, read_schedule, to_json
from pipesched.schedules.formats.timeline_json import read_timeline, timeline_to_json
from pipesched.schedules.formats.torch_csv import read_csv, write_csv, write_csv_comms
from pipesched.schedules.torch_lower import lower_for_torch

__all__ = [
    "from_json",
    "lower_for_torch",
    "read_csv",
    "read_schedule",
    "read_timeline",
    "timeline_to_json",
    "to_json",
    "write_csv",
    "write_csv_comms",
]
