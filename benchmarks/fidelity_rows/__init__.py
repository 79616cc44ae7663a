"""The rows of `fidelity.py`: each measures one kind of prediction error, and yields its section."""
