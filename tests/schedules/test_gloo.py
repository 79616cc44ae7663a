"""What `schedules.semantics.communicators` says of gloo, asked of gloo itself."""

import json
import sys
from pathlib import Path

import pytest

from tests.processes import run_all

WORKER = Path(__file__).with_name("gloo_worker.py")


@pytest.mark.distributed
def test_gloo_keeps_channels_in_order_and_apart_and_its_sends_wait_for_their_receives(tmp_path):
    ranks = run_all([([sys.executable, WORKER, str(rank), str(tmp_path / "store")], None) for rank in range(2)])
    first, second = (json.loads(rank.stdout.splitlines()[-1]) for rank in ranks)
    assert first["exchange"]
    assert second["exchange"]
    assert second["in_order"] == [0.0, 1.0, 2.0]
    assert first["unreceived"] is False
