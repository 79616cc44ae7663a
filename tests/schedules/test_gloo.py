"""What `schedules.semantics.communicators` says of gloo, asked of gloo itself."""

import json

import pytest

from tests.executor.job_sequence_ranks import run_module


@pytest.mark.distributed
def test_gloo_keeps_channels_in_order_and_apart_and_its_sends_wait_for_their_receives(tmp_path):
    printed = run_module("tests.schedules.gloo_worker", 2, tmp_path)
    first, second = (json.loads(text.splitlines()[-1]) for text in printed)
    assert first["exchange"]
    assert second["exchange"]
    assert second["in_order"] == [0.0, 1.0, 2.0]
    assert first["unreceived"] is False
