"""The machines: devices, the links between them, and how long a reduction takes on them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
