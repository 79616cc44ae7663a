import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesched.profiles.clusters import Device, Link, cluster_of, fit_link


@settings(deadline=None)
@given(st.floats(1e-6, 1e-1), st.floats(1e3, 1e11))
def test_a_line_is_found_again(latency_s, bandwidth):
    sizes = [int(bandwidth * latency_s * factor) + 1 + i for i, factor in enumerate((0.1, 1, 10))]
    found = fit_link([(size, latency_s + size / bandwidth) for size in sizes])
    assert found.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert found.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=1e-6)


def test_a_negative_latency_becomes_none_at_all():
    found = fit_link([(100, 1.0), (1000, 20.0)])
    assert found.latency_s == 0.0
    # the best t = x / bandwidth by relative error: sum (x/t)^2 / sum (x/t)
    assert found.bandwidth_bytes_per_s == pytest.approx((100**2 + 50**2) / (100 + 50))


def test_longer_messages_that_are_not_slower_mean_no_limit():
    assert fit_link([(100, 2.0), (1000, 2.0)]) == Link(2.0, math.inf)


def test_two_ranks_need_no_exceptions():
    link = Link(1e-5, 1e9)
    found = cluster_of([0, 0], {(0, 1): link}, "here")
    assert (found.intra, found.inter, found.links, found.origin) == (link, None, (), "here")


def test_links_inside_and_between_nodes_are_medians_with_exceptions():
    links = {(0, 1): Link(1.0, 10.0), (0, 2): Link(4.0, 1.0), (1, 2): Link(6.0, 3.0)}
    found = cluster_of([0, 0, 1], links, "")
    assert found.devices == (Device(node=0), Device(node=0), Device(node=1))
    assert found.intra == Link(1.0, 10.0)
    assert found.inter == Link(5.0, 2.0)
    for (a, b), link in links.items():
        assert found.link(a, b) == found.link(b, a) == link
    assert len(found.links) == 4
