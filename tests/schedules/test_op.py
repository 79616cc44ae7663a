import pytest

from pipesched.schedules.ops import (
    STAGE_WORDS,
    Average,
    Compute,
    Message,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    computes,
    for_each_word,
    gives,
    needs,
    occupies_device,
    stages_of_op,
)

F5 = Compute(Phase.FORWARD, 0, 5)
B1 = Compute(Phase.BACKWARD, 3, 1)
ACTIVATION = Message(Payload.ACTIVATION, 1, 4)
GRADIENT = Message(Payload.GRADIENT, 1, 4)


def test_an_activation_goes_to_the_next_stage_and_a_gradient_to_the_one_before():
    assert ACTIVATION.receiver == 2
    assert GRADIENT.receiver == 0


@pytest.mark.parametrize(
    ("phase", "stage", "expected"),
    [  # of 3 stages; A for activation, G for gradient, then the stage that made it
        ("F", 0, []),
        ("F", 1, ["A0"]),
        ("F", 2, ["A1"]),
        ("R", 0, ["A0"]),
        ("R", 2, ["A2"]),
        ("B", 0, ["A0", "G1"]),
        ("B", 1, ["A1", "G2"]),
        ("B", 2, ["A2"]),
        ("I", 0, ["A0", "G1"]),
        ("I", 2, ["A2"]),
        ("W", 0, ["G0"]),
        ("W", 2, ["G2"]),
    ],
)
def test_an_op_needs_its_own_stages_work_first_then_its_neighbours(phase, stage, expected):
    got = needs(Compute(Phase(phase), stage, 6), 3)
    assert [f"{'A' if m.payload is Payload.ACTIVATION else 'G'}{m.stage}" for m in got] == expected
    assert {m.microbatch for m in got} <= {6}


def test_forwards_give_activations_both_backwards_give_gradients_and_the_rest_nothing():
    given = {phase.value: gives(Compute(phase, 1, 4)) for phase in Phase}
    assert given == {"F": ACTIVATION, "B": GRADIENT, "I": GRADIENT, "W": None, "R": None}


def test_an_overlap_holds_two_computations_and_all_else_at_most_one():
    assert computes(Overlap(F5, B1)) == (F5, B1)
    assert computes(F5) == (F5,)
    for op in (Send(ACTIVATION, 0), Recv(ACTIVATION, 0), *(word(0) for word in STAGE_WORDS)):
        assert computes(op) == ()


def test_sends_recvs_reduces_and_unshards_only_post_and_all_else_keeps_a_device_busy():
    assert not any(map(occupies_device, (Send(ACTIVATION, 0), Recv(ACTIVATION, 0), Reduce(0), Unshard(0))))
    assert all(map(occupies_device, (F5, Overlap(F5, B1), Step(0), Average(0), Reshard(0))))


def test_an_overlap_works_on_two_stages_a_message_on_none_and_all_else_on_its_own():
    assert stages_of_op(Overlap(F5, B1)) == (0, 3)
    assert stages_of_op(Send(ACTIVATION, 0)) == stages_of_op(Recv(ACTIVATION, 0)) == ()
    for op in (B1, *(word(3) for word in STAGE_WORDS)):
        assert stages_of_op(op) == (3,)


def test_a_table_that_lacks_a_word_is_refused():
    with pytest.raises(TypeError, match="Average: got no row"):
        for_each_word({word: word.word for word in STAGE_WORDS if word is not Average})
