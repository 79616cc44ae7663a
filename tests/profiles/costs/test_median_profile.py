"""The median of profiles: seconds between those of all, of two half-way; all else as it was."""

from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import median_profile
from tests.profiles.hand_profiles import layer, measurement, profile


def test_seconds_lie_half_way_and_bytes_stay():
    quicker = profile(layer(measurement(1)), layer(measurement(1)))
    slower = replace(
        quicker,
        layers=tuple(
            replace(
                quicker_layer,
                step_s=3 * quicker_layer.step_s,
                measurements=(replace(quicker_layer.measurements[0], forward_s=5.0),),
            )
            for quicker_layer in quicker.layers
        ),
    )
    middle = median_profile(quicker, slower)
    for was, median_layer in zip(quicker.layers, middle.layers, strict=True):
        assert median_layer.step_s == pytest.approx(2 * was.step_s)
        assert median_layer.measurements[0].forward_s == pytest.approx((was.measurements[0].forward_s + 5.0) / 2)
        assert median_layer.measurements[0].backward_s == was.measurements[0].backward_s
        assert median_layer.weight_bytes == was.weight_bytes
    assert median_profile(quicker, quicker) == quicker


def test_of_three_each_number_is_its_own_median():
    """The slowest profile of one number is not that of another."""
    several = [profile(layer(measurement(1, f, b))) for f, b in ((1.0, 9.0), (2.0, 7.0), (9.0, 1.0))]
    (median,) = median_profile(*several).layers[0].measurements
    assert (median.forward_s, median.backward_s) == (2.0, 7.0)


def test_profiles_of_other_layers_have_no_median():
    with pytest.raises(ProfileError, match="different layers"):
        median_profile(profile(layer(measurement(1))), profile(layer(measurement(2))))
