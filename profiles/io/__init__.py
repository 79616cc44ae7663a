"""Profiles, clusters and plans as files: reading, writing, and one form for the messages of their faults."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
