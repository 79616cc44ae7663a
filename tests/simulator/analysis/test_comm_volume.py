import pytest

from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Reduce, Step, backward, forward
from pipesched.simulator.analysis.summary import CommunicationVolume, communication_volume
from tests.schedules.hand_schedules import replicated, v_shaped


def test_every_microbatch_goes_there_and_back_over_every_boundary():
    costs = StageCosts(tuple(StageCost(1.0, output_bytes=10**stage) for stage in range(3)))
    assert communication_volume(lower(build("1f1b", 3, 5)), costs) == CommunicationVolume(5 * 2 * 2, 5 * 2 * (1 + 10))


def test_what_stays_on_a_rank_is_not_sent():
    costs = StageCosts((StageCost(1.0, output_bytes=1),) * 4)
    assert communication_volume(lower(v_shaped()), costs) == CommunicationVolume(2 * 2 * 2, 2 * 2 * 2)


@pytest.mark.parametrize("r", [1, 2, 3, 8])
def test_a_ring_over_r_replicas_moves_twice_the_gradients_less_one_share_from_each(r):
    rows = [[forward(0, i), backward(0, i), Reduce(0), Step(0)] for i in range(r)]
    costs = StageCosts((StageCost(1.0, weight_bytes=24),))
    by_replica = 2 * (r - 1) * 24 // r  # Patarasuk and Yuan 2009
    volume = communication_volume(make_schedule("replicas", 1, r, rows), costs)
    assert volume == CommunicationVolume(2 * r * (r - 1), r * by_replica)


def test_messages_and_reduces_add_up():
    costs = StageCosts((StageCost(1.0, output_bytes=5, weight_bytes=100), StageCost(1.0, weight_bytes=200)))
    # four micro-batches there and back, and a ring of two for each of the two stages
    volume = communication_volume(lower(replicated()), costs)
    assert volume == CommunicationVolume(4 * 2 + 2 * 2 * 2, 4 * 2 * 5 + 2 * 100 + 2 * 200)
