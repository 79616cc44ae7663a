"""Words that make a sentence be read twice become fewer, folder by folder: the record here only goes down."""

RECORD = {"simulator": 12, "executor": 10, "schedules": 10, "profiles": 8, "pipesched": 28, "docs": 85}
"""The most words of `benchmarks.house.WORDS` in the docstrings of a folder, and in all pages."""


def test_no_folder_has_more_of_these_words_than_its_record_which_is_close_above_them(rows):
    house = rows("house")
    slack = {folder: RECORD[folder] - house.num_words(lines) for folder, lines in house.prose_of_folders().items()}
    assert all(words >= 0 for words in slack.values()), f"name the thing, in words of the field: {slack}"
    assert all(words <= 20 for words in slack.values()), f"lower the record: {slack}"
