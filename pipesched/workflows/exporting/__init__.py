"""Exports of a setting to other trainers: flags of Megatron-LM, configurations of torchtitan and DeepSpeed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
