"""The function `pipesched.workflows.measuring.profile_links`."""

import pytest

from pipesched.executor import RankFailed
from pipesched.profiles.io import load_cluster
from pipesched.workflows.measuring import profile_links


@pytest.mark.distributed
def test_the_links_between_two_processes_are_measured_and_a_fault_is_named(tmp_path):
    measurement = profile_links(sizes_bytes=[1024, 65536], repeats=2)
    with pytest.raises(RankFailed, match="links: got sizes"):
        profile_links(sizes_bytes=[1024], repeats=2)

    cluster, frame = measurement.cluster, measurement.to_frame()
    assert {device.node for device in cluster.devices} == {0}
    assert (len(cluster.devices), cluster.inter, cluster.links) == (2, None, ())
    assert "gloo" in cluster.origin
    assert frame[["from", "to"]].to_numpy().tolist() == [[0, 1], [1, 0]]
    assert frame["latency_s"].tolist() == [cluster.intra.latency_s] * 2
    assert [label.get_text() for label in measurement.plot().axes[0].get_xticklabels()] == ["1 KiB", "64 KiB"]
    assert "messages between two ranks that compute" in measurement._repr_html_()
    measurement.save(tmp_path / "links.json")
    assert load_cluster(tmp_path / "links.json").devices == cluster.devices
    # how long a message is on its way may be all its ranks' own time: then nothing is left for the latency
    assert cluster.intra.sending_s(1024) + cluster.intra.transfer_s(1024) + cluster.intra.receiving_s(1024) > 0
    assert min(cluster.intra.sending_s(1024), cluster.intra.post_s, cluster.intra.receiving_s(1024)) > 0
    assert all(device.op_s > 0 for device in cluster.devices)
    assert len(measurement.slowdowns) == 2
    assert all(0 <= slowdown < 100 for slowdown in measurement.slowdowns)  # what `--slowdown` takes
    assert "slows ops" in measurement._repr_html_()
