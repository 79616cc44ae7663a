"""What `schedules.streams` says of gloo, asked of gloo itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("gloo_worker.py")


@pytest.mark.distributed
@pytest.mark.timeout(90)
def test_gloo_keeps_channels_in_order_and_apart_and_its_sends_wait_for_their_receives(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, WORKER, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        first, second = (json.loads(rank.communicate(timeout=80)[0].splitlines()[-1]) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert first["exchange"]
    assert second["exchange"]
    assert second["in_order"] == [0.0, 1.0, 2.0]
    assert first["unreceived"] is False
