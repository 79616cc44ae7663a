"""Profiles, clusters and plans as files: one door for reading and writing them, and one wording for their faults."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
