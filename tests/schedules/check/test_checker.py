"""All of the checker together; its parts have tests of their own."""

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError, make_schedule
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.check import BACKENDS, Finding, MessageBackend, find_faults, judge, require_runnable
from pipesched.schedules.formats.torch_csv import read_csv_text
from pipesched.schedules.lowering import lower, lower_for_torch
from tests.properties import examples
from tests.schedules.edits import edited, mutant, place_of
from tests.schedules.hand_schedules import mixed_backwards, replicated, v_shaped


@examples(25)
@given(st.sampled_from(sorted(CATALOGUE)), st.integers(1, 16), st.integers(1, 64), st.integers(1, 4))
def test_at_no_size_is_a_schedule_of_the_catalogue_refused(name, p, m, v):
    # benchmarks/checker_sizes.py looks at all of them
    try:
        schedule = CATALOGUE[name].build(p, m, **({"num_chunks": v} if CATALOGUE[name].traits.takes_chunks else {}))
    except ScheduleError:  # a size that it cannot have
        reject()
    assert find_faults(schedule) == ()
    assert find_faults(lower(schedule)) == ()


@pytest.mark.parametrize("schedule", [v_shaped(), replicated(), mixed_backwards()], ids=["v", "replicated", "mixed"])
def test_stages_in_a_v_replicas_and_mixed_backwards_are_fine(schedule):
    assert find_faults(schedule) == ()
    assert find_faults(lower(schedule)) == ()


def test_our_order_of_1f1b_is_for_a_communicator_per_direction():
    """Rank 0 waits for B0 of rank 1 before it sends F1, which rank 1 wants to receive before it sends B0."""
    judgement = judge(lower(one_f_one_b(2, 2)))
    unsafe = {backend for backend, findings in judgement.findings.items() if findings}
    assert unsafe == {MessageBackend.NCCL_PAIR, MessageBackend.NCCL_RANK, MessageBackend.NCCL_BATCHED}
    (finding,) = judgement.findings[MessageBackend.NCCL_PAIR]
    assert [str(link.op) for link in finding.deadlock.links] == ["0RECV_B0", "1SEND_B0", "1RECV_F1", "0SEND_F1"]
    assert finding.deadlock.missing is None


@pytest.mark.parametrize("name", CATALOGUE)
def test_lists_without_communication_are_lowered_as_the_user_of_each_backend_does_and_are_safe_on_all(name):
    schedule = CATALOGUE[name].build(4, 8)
    judgement = judge(schedule)
    assert judgement.lists[MessageBackend.GLOO] == judgement.lists[MessageBackend.NCCL] == lower(schedule)
    assert judgement.lists[MessageBackend.NCCL_PAIR] == lower_for_torch(schedule)
    assert {backend for backend, findings in judgement.findings.items() if findings} == set()


def test_an_exchange_is_safe_where_neighbours_go_together():
    """Both send first: queued one by one they block each other, in one batch they do not."""
    first = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1"
    second = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"
    findings = judge(read_csv_text(f"{first}\n{second}", "x")).findings
    unsafe = {backend for backend, here in findings.items() if here}
    assert unsafe == {MessageBackend.NCCL_PAIR, MessageBackend.NCCL_RANK}
    (finding,) = findings[MessageBackend.NCCL_PAIR]
    assert [str(link.op) for link in finding.deadlock.links] == ["0SEND_F1", "1RECV_F1", "1SEND_B0", "0RECV_B0"]


def test_a_list_that_cannot_be_lowered_is_unsafe_everywhere_for_the_same_reason():
    bad = edited(gpipe(2, 2), 1, lambda row: row.reverse())
    judgement = judge(bad)
    assert all(lists == bad for lists in judgement.lists.values())
    assert len(set(judgement.findings.values())) == 1
    assert {finding.kind for finding in judgement.findings[MessageBackend.BUFFERED]} == {"structure", "progress"}


def test_faults_that_are_no_deadlocks_count_on_every_backend():
    good = lower(gpipe(2, 2))
    bad = edited(good, 0, lambda row: row.append(row[place_of(good, 0, "0F1")]))
    findings = judge(bad).findings
    assert list(findings) == list(BACKENDS) == list(MessageBackend)
    assert all({finding.kind for finding in here} == {"structure"} for here in findings.values())


def test_judge_finds_on_gloo_what_check_finds():
    for seed in range(100):
        _, schedule = mutant(seed)
        if schedule.is_lowered:
            assert judge(schedule).findings[MessageBackend.GLOO] == find_faults(schedule)


def test_a_finding_says_its_place_first():
    assert str(Finding("structure", 2, 5, "so")) == "rank 2 op 5: so"
    assert str(Finding("structure", 2, None, "so")) == "rank 2: so"
    assert str(Finding("structure", None, None, "so")) == "so"


def test_the_places_of_a_finding_are_all_ops_that_have_a_part_in_it():
    assert Finding("structure", 2, 5, "so").places == ((2, 5),)
    assert Finding("structure", 2, None, "so").places == ()
    (finding,) = judge(lower(one_f_one_b(2, 2))).findings[MessageBackend.NCCL_PAIR]
    assert set(finding.places) == {(0, 2), (1, 4), (1, 1), (0, 4)}


def test_what_cannot_run_is_refused_in_one_line_with_three_findings_and_a_count():
    require_runnable(gpipe(2, 2))
    with pytest.raises(ScheduleError) as error:
        require_runnable(make_schedule("hollow", 2, 2, [[], []]))
    text = str(error.value)
    assert text == "hollow: 0B0 is missing; 0F0 is missing; 0B1 is missing; and 5 more"


def test_every_finding_of_a_mutant_has_a_place_in_its_lists():
    for seed in range(150):
        _, schedule = mutant(seed)
        for finding in find_faults(schedule):
            assert "\n" not in str(finding)
            if finding.index is not None:
                assert 0 <= finding.index < len(schedule.ops[finding.rank])
            assert all(0 <= index < len(schedule.ops[rank]) for rank, index in finding.places)
