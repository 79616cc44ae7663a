import tempfile

import pytest

from pipesched.executor.launch import RankState
from pipesched.executor.launch.standstill import reported_standstill


def gone(error):
    assert "pipesched-standstill-" in str(error)
    raise RuntimeError("the store is gone")


def test_a_report_of_which_nobody_is_told_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    states = {0: RankState(rank=0, at_op_s=3.0, is_stopped=True)}
    with pytest.raises(RuntimeError, match="the store is gone"):
        reported_standstill(states, lambda rank: (), gone, is_on_cpus=True)
    assert not [*tmp_path.iterdir()]
