"""The parts of `published.py`: rows of published runs, their settings, predictions, statistics and the page."""
