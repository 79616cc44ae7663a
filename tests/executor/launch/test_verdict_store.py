"""What is said to torchrun's store without PyTorch, which PyTorch's own client and server judge."""

import pytest
from torch.distributed import TCPStore

from pipesched.executor.launch.guard_board import GuardBoard
from pipesched.executor.launch.verdict_store import EndingCause, VerdictStore


@pytest.mark.parametrize("is_libuv", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_verdict_of_one_that_has_not_loaded_torch_is_that_of_all_guards(is_first, is_libuv, monkeypatch):
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=is_libuv)
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(server.port)), ("GROUP_RANK", "1")):
        monkeypatch.setenv(name, value)
    with VerdictStore() as store:
        boards = [store, GuardBoard()][:: 1 if is_first else -1]
        assert [board.verdict() for board in boards] == [None, None]
        said = [board.decide(text) for board, text in zip(boards, ("rank 1 was killed: é", "nobody came"), strict=True)]
        assert {*said, *(board.verdict() for board in boards)} == {EndingCause(1, "rank 1 was killed: é")}


def test_a_store_that_goes_is_noticed(monkeypatch):
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    with VerdictStore() as store:
        assert store.verdict() is None
        del server
        with pytest.raises(OSError, match=r"gone|reset|[Bb]roken"):
            store.verdict()
