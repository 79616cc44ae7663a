"""Closed forms: the oracles of the tests and the notebooks.

Equal stages; p ranks, m micro-batches, v chunks per rank; t_f and t_b are the seconds of F and B of all that a rank
holds (with v chunks, a v-th for each), t_i and t_w those of I and W; transfer_s, in the formulas c, is the latency of
one message. Makespans leave out the optimizer's step. The longest span is a rank's, from its first F to its last W.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
