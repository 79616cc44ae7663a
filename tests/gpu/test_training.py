"""A training on streams has the losses of one on a CPU."""

import pytest

import pipesched
from pipesched.schedules.transforms import ScheduleSpec

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["1f1b", "pipedream", "avgpipe"])
def test_losses_are_those_of_a_cpu(name, device):
    spec = ScheduleSpec(name=name, num_ranks=2, num_microbatches=2)
    there, here = (
        pipesched.train("mlp:layers=4,width=8", spec, num_steps=6, batch_size=8, dtype="float64", lr=0.01, device=kind)
        for kind in (device.type, "cpu")
    )
    assert there.losses == pytest.approx(here.losses, rel=1e-9)
    assert len(there.notes) == (device.type == "cuda")
