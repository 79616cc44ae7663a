"""Many settings at once: what each is, and lists that are predicted under many costs and links together."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
