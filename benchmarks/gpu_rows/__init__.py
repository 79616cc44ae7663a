"""The rows of the benchmark on a GPU."""
