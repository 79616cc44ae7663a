import os
from pathlib import Path

import pytest

from pipesched.profiles.companions import Companions
from pipesched.profiles.errors import ProfileError
from pipesched.profiles.models.resolve import resolve_model
from pipesched.profiles.profiler import profile_model


def children():
    """Return the processes whose parent we are, zombies included."""
    me = str(os.getpid())
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == me:
            found.append(entry.name)
    return found


def companions(model, count=1):
    return Companions(model, count, dtype="float32", device="cpu", threads=1, seed=0)


@pytest.mark.distributed
def test_a_profile_says_that_it_was_measured_in_company():
    before = children()
    found = profile_model(resolve_model("mlp:width=4,layers=2"), microbatch_sizes=(1, 2), repeats=1, companions=1)
    assert found.provenance.companions == 1
    assert children() == before


@pytest.mark.distributed
def test_companions_end_when_the_measurement_fails():
    before = children()
    with pytest.raises(KeyError), companions("mlp:width=4,layers=2") as others:  # noqa: PT012  # what follows a failure
        others.use(2)
        assert len(children()) == len(before) + 1
        raise KeyError
    assert children() == before


@pytest.mark.distributed
def test_a_companion_that_cannot_run_the_model_says_why():
    with companions("not_there_at_all:f") as others, pytest.raises(ProfileError, match="ModuleNotFoundError") as caught:
        others.use(1)
    assert "\n" not in str(caught.value)
