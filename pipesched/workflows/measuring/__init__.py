"""Measurements of a machine: costs of layers, links, and runs; and estimated costs of other machines."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
