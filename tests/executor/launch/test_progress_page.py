"""The page where ranks write where they are, read while they write."""

import subprocess
import sys
import time

from pipesched.executor.launch.progress_page import ProgressPage

WRITER = """
import sys
from pathlib import Path
from pipesched.executor import waiting_for
from pipesched.executor.launch.progress_page import ProgressPage

write = ProgressPage.open(Path(sys.argv[1])).writer(1)
while not Path(sys.argv[2]).exists():
    for index in range(100):
        write(index)
        with waiting_for("a message", 0):
            pass
"""


def test_a_rank_that_is_read_while_it_writes_has_never_waited_longer_than_it_has(tmp_path):
    """Of a number that is written in two steps, a reader could take a rank to wait since the machine was started."""
    begun_ns = time.monotonic_ns()
    with ProgressPage.create(tmp_path / "page", 2) as page:
        stop, ran = tmp_path / "stop", []
        writer = subprocess.Popen([sys.executable, "-P", "-c", WRITER, str(tmp_path / "page"), str(stop)])
        while writer.poll() is None and (len(ran) < 20_000 or ran[-1].num_ops <= 1000):
            ran += [where for where in [page.read(1)] if where.pid > 0]
        stop.touch()
        assert writer.wait() == 0
        assert page.read(0).num_ops == -1, "nobody has written there"
    assert ran[-1].num_ops > 1000
    assert all(where.num_ops != 0 and where.place >= -1 for where in ran)
    assert [where for where in ran if where.num_ops > 0 and where.since_ns < begun_ns] == []
    assert [where for where in ran if where.whom >= 0 and where.waits_since_ns < begun_ns] == []
