"""Profiles: the costs of ops on stages and machines, measured or given."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
