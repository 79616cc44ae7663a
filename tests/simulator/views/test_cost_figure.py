"""The picture of a profile has a bar of forward, one of backward on it, and one of saved bytes for every layer."""

import pipesched
from pipesched.simulator.views import profile_figure
from pipesched.workflows.measuring import ProfileMeasurement


def test_every_layer_has_its_seconds_and_its_bytes():
    profile = pipesched.load_profile("profiles/data/gpt-10m-epyc.json")
    seconds, kept = profile_figure(profile).axes
    measured = [layer.measurements[-1] for layer in profile.layers]

    forward, backward = seconds.containers
    assert [bar.get_height() for bar in forward] == [1e3 * layer.forward_s for layer in measured]
    tops = [bar.get_y() + bar.get_height() for bar in backward]
    assert tops == [1e3 * layer.forward_s + 1e3 * layer.backward_s for layer in measured]
    assert [bar.get_height() for bar in kept.containers[0]] == [layer.saved_bytes / 2**20 for layer in measured]
    assert ProfileMeasurement(profile).plot().get_suptitle().startswith("gpt:")
