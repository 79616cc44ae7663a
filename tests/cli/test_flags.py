"""What the library says of its arguments, said of options."""

import pytest

from pipesched.cli.errors import InputError, in_flags
from pipesched.profiles import ProfileError
from pipesched.workflows import ArgumentError


@pytest.mark.parametrize(
    ("of_arguments", "of_options"),
    [
        ("num_runs: got 5 without `jitter`; try `jitter=0.1`", "--runs: got 5 without --jitter; try --jitter 0.1"),
        ("num_microbatches: got 3; try `num_chunks=2`", "--microbatches: got 3; try --chunks 2"),
        ("costs.csv: got 3 stages, expected 2", "costs.csv: got 3 stages, expected 2"),
    ],
)
def test_arguments_are_said_as_options(of_arguments, of_options):
    assert in_flags(ArgumentError(of_arguments)) == of_options


@pytest.mark.parametrize(
    "error", [InputError("links: got `a`"), ValueError("stubborn: got 2 ranks"), ProfileError("stages: got 2")]
)
def test_what_speaks_of_no_argument_stays_as_it_is(error):
    assert in_flags(error) == str(error)


def test_an_error_of_another_kind_may_speak_of_arguments_too():
    assert in_flags(ProfileError("stages: got 2; try `by=time`")) == "stages: got 2; try --by time"
