"""Network interfaces of this machine, which gloo takes by name."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from pipesched.executor import ExecutionError
from pipesched.schedules.common import shown

_GET_ADDRESS = 0x8915
"""Linux: ``SIOCGIFADDR``."""


def require_interface(names: str, has_address: Callable[[str], bool] | None = None) -> None:
    """Refuse names without an address, before gloo searches for one for seconds in every rank.

    Args:
        names: As in ``GLOO_SOCKET_IFNAME``: one interface, or several separated by commas.
        has_address: Returns whether an interface has an address (default: asks the system on Linux, accepts all names
            elsewhere).

    Raises:
        ExecutionError: An interface is missing or has no address; names the usable interfaces.
    """
    if has_address is None:
        if sys.platform != "linux":
            return
        has_address = _has_address
    missing = [name for name in names.split(",") if not has_address(name)]
    if missing:
        usable = [name for _, name in socket.if_nameindex() if has_address(name)]
        expected = f"one of {', '.join(usable)}" if usable else "one that is up"
        advice = f"try GLOO_SOCKET_IFNAME={usable[0]}" if usable else "bring one up, as with 'ip link set lo up'"
        raise ExecutionError(
            f"GLOO_SOCKET_IFNAME: got {shown(missing[0])}, which is no network interface with an address, "
            f"expected {expected}; {advice}"
        )


def _has_address(name: str) -> bool:
    """Return whether an interface has an address, of IPv4 or of IPv6."""
    from fcntl import ioctl

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            ioctl(asked, _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return _has_address_6(name)
    return True


def _has_address_6(name: str) -> bool:
    try:
        with Path("/proc/net/if_inet6").open() as lines:
            return any(line.split()[-1] == name for line in lines)
    except OSError:
        return False
