"""Reference models, as lists of layers that can be cut into stages anywhere."""
