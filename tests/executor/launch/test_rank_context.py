"""Where ranks meet under torchrun."""

from itertools import count

from torch.distributed import HashStore

from pipesched.executor.launch import rank_context


def test_ranks_that_are_started_again_do_not_find_what_those_before_them_left(monkeypatch):
    """The agent of torchrun keeps one store for all attempts, and each attempt counts its meetings from 0."""
    kept = HashStore()
    monkeypatch.setattr(rank_context, "_lasting", lambda meet, process, size: kept)
    is_there = []
    for restart in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        monkeypatch.setattr(rank_context, "_meetings", count())
        store = rank_context._store("env://", 0, 2, rank_context.timedelta(seconds=1))
        is_there.append(store.check(["address"]))
        store.set("address", "here")
    assert is_there == [False, False]
