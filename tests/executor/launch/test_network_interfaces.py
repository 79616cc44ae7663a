"""Whether gloo would find an address, asked before any rank is started."""

import sys

import pytest

from pipesched.executor import ExecutionError
from pipesched.executor.launch import fork_client, started
from pipesched.executor.launch.supervisor import require_interface


def test_an_interface_with_an_address_will_do():
    require_interface("anything", has_address=lambda name: True)


def test_where_none_is_up_it_is_said_how_to_bring_one_up():
    with pytest.raises(ExecutionError, match=r"GLOO_SOCKET_IFNAME: got 'lo', which is no .* bring one up") as raised:
        require_interface("eth7,lo", has_address=lambda name: name == "eth7")
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="nobody can be asked here")
def test_no_process_is_started_for_an_interface_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    monkeypatch.setattr(fork_client, "_server", lambda: pytest.fail("a process was started"))
    with (
        pytest.raises(ExecutionError, match="got 'none0', which is no network interface"),
        started(2, "m", [], tmp_path),
    ):
        pass
