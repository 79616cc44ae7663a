"""`pipesched.profile_links`."""

import pytest

import pipesched
from pipesched.executor import RankFailed


@pytest.mark.distributed
def test_the_links_between_two_processes_are_measured_and_a_fault_is_named():
    with pipesched.session():
        cluster = pipesched.profile_links(sizes_bytes=[1024, 65536], repeats=2)
        with pytest.raises(RankFailed, match="links: got sizes"):
            pipesched.profile_links(sizes_bytes=[1024], repeats=2)

    assert len(cluster.devices) == 2
    assert cluster.intra.latency_s > 0
