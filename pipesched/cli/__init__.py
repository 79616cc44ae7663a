"""The command line: it turns options into calls of the workflows, and prints the results."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
