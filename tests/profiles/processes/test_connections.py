"""Whose the other ends of connections are."""

import socket

from pipesched.profiles.processes import open_sockets, strangers
from pipesched.profiles.processes.connections import other_owners

OURS, THEIRS, ROOT = 1000, 1001, 0
LISTENER, HOST = "0100007F:8000", "0200000A:8000"


def row(local, remote, user, inode):
    return f"0: {local} {remote} 01 00000000:00000000 00:00000000 00000000 {user} 0 {inode} 1 0 20 4 30 10 -1"


def test_another_user_at_the_other_end_is_named_and_nobody_else():
    rows = [
        row(LISTENER, "0100007F:9000", OURS, 1),
        row("0100007F:9000", LISTENER, THEIRS, 2),
        row(LISTENER, "0100007F:9001", OURS, 3),
        row("0100007F:9001", LISTENER, OURS, 4),
        row(LISTENER, "0100007F:9002", OURS, 5),
        row("0100007F:9002", LISTENER, ROOT, 6),
        row(HOST, "0300000A:9003", OURS, 7),  # the other end is on another machine
    ]
    assert other_owners(rows, {1, 3, 5, 7}, OURS) == [THEIRS]
    assert other_owners(rows, {3, 5, 7}, OURS) == []
    assert other_owners(rows, {2}, THEIRS) == [OURS], "and we are a stranger there"


def test_the_system_tells_of_a_connection_of_our_own():
    known = open_sockets()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0],
    ):
        assert len(open_sockets() - known) == 3
        assert client.fileno() >= 0
        assert strangers(known) == []
