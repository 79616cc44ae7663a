"""The rows of faults.py, a module each."""
