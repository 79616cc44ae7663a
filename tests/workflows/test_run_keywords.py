"""The keywords that say how a model is run are the fields of a run, with their types."""

from dataclasses import fields
from typing import get_type_hints

from pipesched.executor.launch import RunSpec
from pipesched.workflows import RunKeywords


def test_the_keywords_of_a_run_are_its_fields():
    own = {field.name for field in fields(RunSpec)} - {"job", "model", "bounds"}  # made of the other arguments
    keywords, of_runs = get_type_hints(RunKeywords), get_type_hints(RunSpec)
    assert set(keywords) == own
    assert keywords == {name: of_runs[name] for name in own}
