"""The file formats of the project: contents, and form as JSON Schema."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
