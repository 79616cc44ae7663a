"""Layers of each stage as counts and as Megatron-LM's layout, whose values are counted by hand."""

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.partitioning import parse_partition, stage_sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("3,3,4", [3, 3, 4]),
        ("Et|t|tL", [2, 1, 2]),
        ("Et*18|t*20|t*18L", [19, 20, 19]),
        ("Ettt|(tt|)*29,m|L", [4, *[2] * 29, 1, 1]),  # the example of Megatron-LM's own docstring
        ("E,(t|)*3tL", [2, 1, 1, 2]),
        ("(tt|)*2tt", [2, 2, 2]),
        ("(t*2|)*2t", [2, 2, 1]),
        ("E|(t|t|)*2L", [1, 1, 1, 1, 1, 1]),
        ("E tt | tt L", [3, 3]),
        ("tt|tt", [2, 2]),
        ("E|*2L", [1, 0, 1]),
    ],
)
def test_sizes_are_counted_stage_by_stage(text, sizes):
    assert stage_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ett|tEL", "E first"),
        ("LttE|t", "E first"),
        ("Emt|L", "m and L last"),
        ("Ett|ttLL", "L last"),
        ("E(tt|tL", "to repeat"),
        ("E((tt|)*2t|)*2L", "to repeat"),
        ("E*2t|L", "E first"),
        ("Et*|tL", "to repeat"),
        ("uniform", "expected layers per stage"),
        ("Ex|tL", "a layout of Megatron-LM"),
        ("", "try 3,3,4"),
        ("3,t", "to repeat"),
        ("t*999999|t", "at most 100000 layers"),
        ("(t*90000)*90000|t", "at most 100000 layers"),
        ("(" * 5000 + "t", "to repeat"),
    ],
)
def test_another_text_is_refused_in_one_line(text, words):
    with pytest.raises(ProfileError, match=r"partition: got") as caught:
        stage_sizes(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_layout_cuts_the_layers_of_the_model():
    assert parse_partition("Et*2|t*2L", (1.0,) * 6, 2) == ((0, 3), (3, 6))
    assert parse_partition("Et|t|t|tL", (1.0,) * 6, 4) == ((0, 2), (2, 3), (3, 4), (4, 6))


@pytest.mark.parametrize(("text", "num_layers"), [("Et*2|t*2L", 4), ("E||t*4L", 6), ("Et*2|t*2L", 6)])
def test_a_layout_of_another_model_is_refused_and_says_which_letters_are_layers(text, num_layers):
    with pytest.raises(ProfileError, match=rf"{num_layers} in all \(E and L too are layers of the model\)"):
        parse_partition(text, (1.0,) * num_layers, 3)
