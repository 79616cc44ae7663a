"""The rows of `fidelity.py`: each measures how far predictions hold in one respect, and yields its section."""
