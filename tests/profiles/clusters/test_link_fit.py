import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Device, Link, LoadedMessages, cluster_of, fit_link, fit_loaded_link, under_load


@given(st.floats(1e-6, 1e-1), st.floats(1e3, 1e11))
def test_a_line_is_found_again(latency_s, bandwidth):
    sizes = [int(bandwidth * latency_s * factor) + 1 + i for i, factor in enumerate((0.1, 1, 10))]
    link = fit_link([(size, latency_s + size / bandwidth) for size in sizes])
    assert link.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert link.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=1e-6)


def test_a_negative_latency_becomes_none_at_all():
    link = fit_link([(100, 1.0), (1000, 20.0)])
    assert link.latency_s == 0.0
    # the best t = x / bandwidth by relative error: sum (x/t)^2 / sum (x/t)
    assert link.bandwidth_bytes_per_s == pytest.approx((100**2 + 50**2) / (100 + 50))


def test_longer_messages_that_are_not_slower_mean_no_limit():
    assert fit_link([(100, 2.0), (1000, 2.0)]) == Link(2.0, math.inf)


def test_two_ranks_need_no_exceptions():
    link = Link(1e-5, 1e9)
    cluster = cluster_of([0, 0], {(0, 1): link}, "here")
    assert (cluster.intra, cluster.inter, cluster.links, cluster.origin) == (link, None, (), "here")


def test_links_inside_and_between_nodes_are_medians_with_exceptions():
    links = {(0, 1): Link(1.0, 10.0), (0, 2): Link(4.0, 1.0), (1, 2): Link(6.0, 3.0)}
    cluster = cluster_of([0, 0, 1], links, "")
    assert cluster.devices == (Device(node=0), Device(node=0), Device(node=1))
    assert cluster.intra == Link(1.0, 10.0)
    assert cluster.inter == Link(5.0, 2.0)
    for (a, b), link in links.items():
        assert cluster.link(a, b) == cluster.link(b, a) == link
    assert len(cluster.links) == 4


LOADED = Link(2e-5, 1e9, 1e-4, 5e-10, 8e-5, 4e-5, 1e-10)


def loaded(num_bytes):
    passage_s = LOADED.sending_s(num_bytes) + LOADED.transfer_s(num_bytes) + LOADED.receiving_s(num_bytes)
    return LoadedMessages(
        num_bytes, LOADED.sending_s(num_bytes), LOADED.post_s, LOADED.receiving_s(num_bytes), passage_s, 1e-5
    )


def test_what_messages_cost_ranks_that_compute_is_found_again():
    fit = fit_loaded_link([loaded(1024), loaded(65536), loaded(2**20)])
    assert dataclasses.astuple(fit.link) == pytest.approx(dataclasses.astuple(LOADED), rel=1e-9)
    assert fit.op_s == 1e-5
    assert max(fit.residuals.values()) < 1e-9


def test_a_residual_is_how_far_the_worst_size_lies_from_the_line():
    odd = dataclasses.replace(loaded(65536), post_s=2 * LOADED.post_s)
    fit = fit_loaded_link([loaded(1024), loaded(2**20), odd])
    assert fit.link.post_s == LOADED.post_s
    assert fit.residuals["post"] == pytest.approx(0.5)


def test_a_passage_that_send_and_receive_explain_leaves_nothing_for_the_link():
    short = [
        dataclasses.replace(sample, passage_s=sample.send_s + sample.receive_s)
        for sample in (loaded(1024), loaded(2**20))
    ]
    link = fit_loaded_link(short).link
    assert link.latency_s == pytest.approx(0.0, abs=1e-12)
    assert link.transfer_s(2**20) == pytest.approx(0.0, abs=1e-9)


def test_under_load_links_differ_as_they_did_by_ping_pong():
    idle = cluster_of([0, 0, 0], {(0, 1): Link(1e-5, 1e10), (0, 2): Link(3e-5, 5e9), (1, 2): Link(1e-5, 1e10)}, "")
    cluster = under_load(idle, fit_loaded_link([loaded(1024), loaded(2**20)]))
    assert cluster.link(0, 1).latency_s == pytest.approx(2e-5)
    assert cluster.link(0, 2).latency_s == pytest.approx(4e-5)
    assert 1 / cluster.link(2, 0).bandwidth_bytes_per_s == pytest.approx(1.1e-9)
    assert {cluster.link(a, b).send_s for a in range(3) for b in range(3)} == {cluster.intra.send_s}
    assert [device.op_s for device in cluster.devices] == [1e-5] * 3
