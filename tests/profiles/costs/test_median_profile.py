"""The median of profiles: seconds between those of all, of two half-way; all else as it was."""

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import median_profile
from tests.profiles.hand_profiles import layer, measurement, profile


def test_seconds_lie_half_way_and_bytes_stay():
    quicker, middle, slower = (
        profile(layer(measurement(1, forward_s), step_s=step_s))
        for forward_s, step_s in ((1.0, 0.5), (3.0, 1.0), (5.0, 1.5))
    )
    assert median_profile(quicker, slower) == middle
    assert median_profile(quicker, quicker) == quicker


def test_of_three_each_number_is_its_own_median():
    """The slowest profile of one number is not that of another."""
    several = [profile(layer(measurement(1, f, b))) for f, b in ((1.0, 9.0), (2.0, 7.0), (9.0, 1.0))]
    (median,) = median_profile(*several).layers[0].measurements
    assert (median.forward_s, median.backward_s) == (2.0, 7.0)


def test_profiles_of_other_layers_have_no_median():
    with pytest.raises(ProfileError, match="different layers"):
        median_profile(profile(layer(measurement(1))), profile(layer(measurement(2))))
