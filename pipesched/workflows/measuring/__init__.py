"""What a machine is measured for: costs of layers, links, and runs; and costs of a machine that is not there."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
