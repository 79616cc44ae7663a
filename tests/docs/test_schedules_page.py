"""docs/schedules.md is what `make generated` makes of the schedules as they are."""

import re
from pathlib import Path

import pytest

from docs import make_schedules
from pipesched.schedules.builders import CATALOGUE

DOCS = Path(make_schedules.__file__).parent


@pytest.fixture(scope="module")
def text():
    return make_schedules.page()


def test_the_page_is_up_to_date(text):
    assert text == (DOCS / "schedules.md").read_text(), "run make generated"


def test_every_schedule_has_its_section_and_its_picture(text):
    assert re.findall(r"^###? (.*)$", text, re.MULTILINE).count("Asynchronous") == 1
    for name in CATALOGUE:
        assert re.search(rf"^###? {name}$", text, re.MULTILINE)
        assert f"(pictures/schedules/{name}.png)" in text
    pictures = {path.stem for path in (DOCS / "pictures" / "schedules").iterdir()}
    assert pictures == set(CATALOGUE)


def test_every_synchronous_schedule_has_words_and_forms_of_its_own():
    assert set(make_schedules.words()) >= {
        name for name, entry in CATALOGUE.items() if not entry.traits.is_asynchronous
    }


def test_a_form_that_the_simulation_does_not_bear_out_is_refused():
    said, summary = make_schedules.words()["gpipe"], make_schedules.summaries_of("gpipe")["gpipe"]
    make_schedules.require_true(CATALOGUE["gpipe"], said, summary)
    wrong = make_schedules.Words(text="", bubble="p * (t_f + t_b)", in_flight="m")
    with pytest.raises(ValueError, match=r"gpipe: p \* \(t_f \+ t_b\): got 24.0, expected 21.0"):
        make_schedules.require_true(CATALOGUE["gpipe"], wrong, summary)
