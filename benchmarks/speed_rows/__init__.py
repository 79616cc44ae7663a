"""The rows of speed.py, a module for each group of rows."""
