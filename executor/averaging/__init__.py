"""Elastic averaging: the reference model that pipelines move towards, and the process that holds it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
