"""1,000 damaged schedule files: accepted where they are valid all the same, else refused in one line with the place."""

import random
import re

import pytest

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.formats import read_schedule, to_json
from pipesched.schedules.formats.torch_csv import has_communication, read_csv_text, write_csv, write_csv_comms
from pipesched.schedules.lowering import lower_for_torch
from tests.schedules.formats.judge import is_valid_csv, is_valid_json
from tests.schedules.formats.random_ops import damaged, damaged_bytes

COMPUTE = "0F0,0F1,,0B0,0I1,0W1\r\n1F0,1B0,1F1,1I1,,1W1\r\n"
OVERLAP = "0F0,3F0,3B0,0F1,(3F1;0B0)OVERLAP_F_B,3B1,0B1\r\n1F0,2F0,2B0,(1F1;1B0)OVERLAP_F_B,2F1,2I1,1B1,2W1\r\n"
FILES = {
    "compute.csv": COMPUTE,
    "overlap.csv": OVERLAP,
    "comms.csv": write_csv_comms(lower_for_torch(read_csv_text(OVERLAP, "overlap.csv"))),
    "ours.json": to_json(lower_for_torch(read_csv_text(OVERLAP, "overlap.csv"))),
    "versions.json": to_json(pipedream(2, 3)),
}
PLACE = re.compile(
    r"(row \d+(, cell \d+|, stage \d+, micro-batch \d+)?|line \d+(, (byte|column) \d+)?|stages|micro-batches"
    r"|ops\[\d+\](\[\d+\])?|rank_to_device\[\d+\]|'.{1,60}'|[^:]{1,60}): got |got "
)


def test_files_that_are_not_damaged_are_valid():
    for name, text in FILES.items():
        assert (is_valid_csv if name.endswith(".csv") else is_valid_json)(text.encode()), name


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_accepted_if_it_is_valid_and_else_refused_in_one_line(tmp_path, name):
    chance, path = random.Random(name), tmp_path / name
    is_valid = is_valid_csv if name.endswith(".csv") else is_valid_json
    accepted = 0
    for _ in range(200):
        data = damaged_bytes(FILES[name], chance) if chance.random() < 0.3 else damaged(FILES[name], chance).encode()
        path.write_bytes(data)
        schedule = refusal = None
        try:
            schedule = read_schedule(path)
        except ScheduleError as error:
            refusal = str(error)
        assert (refusal is None) == is_valid(data), f"{data!r}: {refusal}"
        if schedule is None:
            assert_says_where(refusal, str(path))
        else:
            assert_reads_back(schedule, path)
            accepted += 1
    assert 5 < accepted < 195


def assert_says_where(message, path):
    assert message.isprintable()
    assert len(message) < 1000
    assert message.startswith(f"{path}: ")
    assert PLACE.match(message.removeprefix(f"{path}: ")), message
    assert "expected" in message
    assert "; try" in message


def assert_reads_back(schedule, path):
    if path.suffix == ".json":
        text = to_json(schedule)
    else:
        write = write_csv_comms if has_communication(schedule.ops) else write_csv
        try:
            text = write(schedule)
        except ScheduleError as error:  # what can be read, but not run by PyTorch
            assert "knows losses by their order" in str(error) or "try lowering the schedule first" in str(error)  # noqa: PT017
            return
    path.write_text(text)
    assert read_schedule(path) == schedule
