"""Messages held back to links: the times of the page, on a clock that the test sets, by hand and by the simulator."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesched.executor import ExecutionError
from pipesched.executor.emulation import Page, ThrottledRoutes, require_emulable
from pipesched.executor.runs import launch
from pipesched.profiles.clusters import Cluster, Device, Link, flat, of_nodes
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.profiles.io import cluster_text
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Recv, Reduce, Send
from pipesched.simulator.engine import simulate_lists
from tests.executor.pipelines import job
from tests.properties import examples

MS = 1_000_000
"""Nanoseconds."""


def routes_of(schedule, cluster, num_bytes=1000, weight_bytes=0):
    cost = StageCost(1.0, output_bytes=num_bytes, weight_bytes=weight_bytes)
    return ThrottledRoutes(schedule, cluster, StageCosts((cost,) * schedule.num_stages))


class Clock:
    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns


@pytest.fixture
def make_pages(tmp_path):
    """Return (clock, a page per rank) for so many bytes."""

    def make(num_bytes, num_ranks):
        (tmp_path / "page").write_bytes(bytes(num_bytes))
        clock = Clock()
        return clock, [Page(tmp_path / "page", clock) for _ in range(num_ranks)]

    return make


def test_a_message_starts_when_both_ends_have_posted_and_its_link_is_free(make_pages):
    # 1000 bytes at 1e5 bytes per second are 10 ms; and 3 ms until they are there
    routes = routes_of(lower(build("gpipe", 2, 3)), flat(2, Link(0.003, 1e5)))
    clock, (sender, receiver) = make_pages(routes.num_bytes, 2)
    first, second, third = (routes.by_meeting[(0, 1), number] for number in range(3))
    sender.post(first)
    assert receiver.over_ns(first, 0) is None
    clock.now_ns = 4 * MS
    receiver.post(first)  # the receiver is late: 4 to 14 on the link, there at 17
    receiver.post(second)
    clock.now_ns = 6 * MS
    sender.post(second)  # the sender is late, and the link is busy until 14: there at 27
    clock.now_ns = 100 * MS
    sender.post(third)
    receiver.post(third)  # the link has long been free
    assert [receiver.over_ns(route, 0) for route in (first, second, third)] == [17 * MS, 27 * MS, 113 * MS]


def test_the_two_directions_of_a_link_do_not_disturb_each_other(make_pages):
    routes = routes_of(lower(build("gpipe", 2, 1)), flat(2, Link(0.0, 1e5)))
    _, (a, b) = make_pages(routes.num_bytes, 2)
    there, back = routes.by_meeting[(0, 1), 0], routes.by_meeting[(1, 0), 0]
    for route in (there, back):
        a.post(route)
        b.post(route)
    assert [a.over_ns(route, 0) for route in (there, back)] == [10 * MS, 10 * MS]


def test_messages_through_a_shared_nic_follow_one_another(make_pages):
    # pipelines 0 -> 2 and 1 -> 3 between two nodes whose devices share a NIC
    node = Cluster((Device(),) * 2, Link(), Link(0.001, 1e5), nics=((0, 1),))
    schedule = replace(lower(build("gpipe", 4, 1)), rank_to_device=(0, 2, 1, 3))
    routes = routes_of(schedule, of_nodes(node, 2))
    _, pages = make_pages(routes.num_bytes, 4)
    first, back, second = (routes.by_meeting[(rank, rank + 1), 0] for rank in range(3))
    for route in (first, back, second):
        for page in pages[:2]:
            page.post(route)
    # device 0 to 2, then 1 to 3 after it; 2 to 1 goes the other route, beside them
    assert [pages[0].over_ns(route, 0) for route in (first, back, second)] == [11 * MS, 11 * MS, 21 * MS]


def test_the_next_run_of_the_list_posts_anew(make_pages):
    routes = routes_of(lower(build("gpipe", 2, 1)), flat(2, Link(0.001)))
    clock, (sender, receiver) = make_pages(routes.num_bytes, 2)
    route = routes.by_meeting[(0, 1), 0]
    for run in range(3):
        clock.now_ns = 50 * MS * run
        sender.post(route)
        assert receiver.over_ns(route, run) is None
        receiver.post(route)
        assert receiver.over_ns(route, run) == (50 * run + 1) * MS


def test_a_sum_takes_as_long_as_a_ring_through_its_replicas_from_when_the_last_has_come(make_pages):
    # 600 bytes in 3 shares over 4 rounds, each 2 ms of a link and 1 ms on its route: 12 ms
    schedule = lower(build("data_parallel", 3, 3))
    routes = routes_of(schedule, flat(3, Link(0.001, 1e5)), weight_bytes=600)
    clock, pages = make_pages(routes.num_bytes, 3)
    (route,) = routes.by_meeting.values()
    for rank, page in enumerate(pages):
        assert page.over_ns(route, 0) is None
        clock.now_ns = 5 * MS * rank
        page.post(route)
    assert pages[0].over_ns(route, 0) == (10 + 12) * MS


def posts_of(timeline, routes):
    """Return (when it was posted, its route, when it is over) of all that goes over links, in order."""
    numbers = Counter()
    for span in timeline.spans:
        match span.op:
            case Send(_, peer):
                where = (span.rank, peer)
            case Recv(_, peer):
                where = (peer, span.rank)
            case Reduce(stage):
                where = stage
            case _:
                continue
        post = span.rank, type(span.op), where
        yield span.posted_s, routes.by_meeting[where, numbers[post]], span.end_s
        numbers[post] += 1


TENTHS = st.integers(0, 30).map(lambda n: n / 10)


@given(
    name=st.sampled_from(["gpipe", "1f1b", "pipedream", "zb_h1", "1f1b_rr", "data_parallel", "chimera"]),
    num_rounds=st.integers(1, 3),
    nics=st.sampled_from([(), ((0, 1),), ((0,), (1,))]),
    inner=TENTHS,
    outer=TENTHS,
    num_bytes=st.integers(0, 20),
    uneven=st.integers(1, 5),
)
@examples(60)
def test_what_is_posted_when_a_simulation_posts_it_is_over_when_it_is_there(
    tmp_path_factory, name, num_rounds, nics, inner, outer, num_bytes, uneven
):
    node = Cluster((Device(),) * 2, Link(inner, 10.0), Link(outer, 3.0), nics=nics)
    cluster, schedule = of_nodes(node, 2), lower(build(name, 4, 4 * num_rounds))
    cost = StageCost(1.0, backward_input_s=1.3, backward_weight_s=0.7, output_bytes=num_bytes, weight_bytes=17)
    costs = StageCosts(tuple(replace(cost, forward_s=1.0 + s % uneven) for s in range(schedule.num_stages)))
    routes = routes_of(schedule, cluster, num_bytes, weight_bytes=17)
    posts = sorted(posts_of(simulate_lists(schedule, costs, cluster), routes), key=lambda post: post[0])
    # of what could start at the same instant, in either order, the page may begin with the other: leave such cases out
    last = {route.cell: posted_s for posted_s, route, _ in posts}
    assume(len({round(posted_s, 9) for posted_s in last.values()}) == len(last))
    path, clock = tmp_path_factory.mktemp("page") / "page", Clock()
    path.write_bytes(bytes(routes.num_bytes))
    page = Page(path, clock)
    for posted_s, route, _ in posts:
        clock.now_ns = round(posted_s * 1e9)
        page.post(route)
    for _, route, end_s in posts:
        assert page.over_ns(route, 0) == pytest.approx(end_s * 1e9, abs=1000)


def test_several_ranks_on_a_device_and_too_few_devices_are_refused_in_one_line():
    schedule = build("gpipe", 3, 2)
    with pytest.raises(ExecutionError, match="several ranks on a device, expected one on each") as raised:
        require_emulable(replace(schedule, rank_to_device=(0, 0, 1)), flat(3))
    assert "\n" not in str(raised.value)
    with pytest.raises(ExecutionError, match="got 2 devices, expected 3 for schedule gpipe"):
        require_emulable(schedule, flat(2))


@pytest.mark.distributed
def test_an_emulated_run_is_never_faster_than_its_devices_and_links_allow():
    # sums over slow links between nodes, devices at half speed, every rank elsewhere than its number; no NICs, where
    # a message that is late may let another one pass, and all be over sooner
    node = Cluster((Device(), Device(speed=0.5)), Link(0.001, 1e8), Link(0.002, 4e6))
    cluster, schedule = of_nodes(node, 2), replace(build("1f1b_rr", 3, 4), rank_to_device=(2, 0, 3))
    cost = StageCost(0.006, 0.009, step_s=0.002, output_bytes=40_000, weight_bytes=60_000)
    costs = StageCosts((cost,) * schedule.num_stages)
    todo = job(schedule, None, emulate=costs, cluster=cluster_text(cluster, "cluster"), iterations=2, dtype="float32")
    predicted_s = simulate_lists(schedule, costs, cluster).makespan_s
    assert predicted_s > 2 * simulate_lists(schedule, costs).makespan_s
    assert all(makespan_s >= predicted_s * (1 - 1e-6) for makespan_s in launch(todo).makespans_s)


@pytest.mark.distributed
def test_an_emulated_message_keeps_its_ranks_as_long_as_the_link_says():
    link = Link(0.002, 1e8, send_s=0.004, send_s_per_byte=5e-8, post_s=0.001, receive_s=0.003)
    cost = StageCost(0.005, 0.005, output_bytes=20_000)
    schedule, costs, cluster = build("1f1b", 2, 4), StageCosts((cost,) * 2), flat(2, link)
    todo = job(schedule, None, emulate=costs, cluster=cluster_text(cluster, "cluster"), iterations=2, dtype="float32")
    predicted_s = simulate_lists(schedule, costs, cluster).makespan_s
    assert predicted_s > simulate_lists(schedule, costs, flat(2, Link(0.002, 1e8))).makespan_s + 0.030
    measured = launch(todo)
    assert all(makespan_s >= predicted_s * (1 - 1e-6) for makespan_s in measured.makespans_s)
    kept_s = [
        hand_over.end_s - hand_over.start_s
        for hand_over in measured.timeline.hand_overs
        if isinstance(hand_over.op, Send)
    ]
    assert min(kept_s) >= 0.005


@pytest.mark.parametrize(
    "link", [Link(latency_s=1e300), Link(bandwidth_bytes_per_s=1e-300), Link(1e308, 1e-308), Link(send_s=1e300)]
)
def test_links_that_take_more_than_a_week_are_refused(link):
    with pytest.raises(ExecutionError, match=r"got links on which messages take .* s, expected at most a week"):
        routes_of(lower(build("gpipe", 2, 1)), flat(2, link))
