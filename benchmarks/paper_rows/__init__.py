"""The tables and figures of the five papers, each with an experiment that repeats it."""
