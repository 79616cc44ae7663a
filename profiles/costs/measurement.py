"""The measurement of one layer on one micro-batch: seconds and bytes, whole and with a split backward."""

from __future__ import annotations

from dataclasses import dataclass

HAS_PARAMETERS = 1
"""`LayerSplit.gradient_bytes` of a layer with parameters whose gradients have an unknown size [bytes]."""


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """The backward of one layer in two halves: I, then W (arXiv:2401.10241).

    The last three fields are as in the measurement, but after I, for the last layer of a stage. I frees all that
    autograd keeps above the topmost parameters; all below stays for W.

    Attributes:
        backward_input_s: Seconds of I.
        backward_weight_s: Seconds of W.
        gradient_bytes: Gradients that I keeps for W.
        saved_bytes: Storages that autograd still keeps inside after I.
        input_saved: Autograd still keeps the input's storage after I.
        output_saved: Autograd still keeps the output's storage after I.
    """

    backward_input_s: float
    backward_weight_s: float
    gradient_bytes: int
    saved_bytes: int
    input_saved: bool
    output_saved: bool


@dataclass(frozen=True, slots=True)
class LayerMeasurement:
    """One layer on one micro-batch. The last layer includes the loss.

    Attributes:
        microbatch_size: Samples.
        forward_s: Seconds of the forward.
        backward_s: Seconds of the full backward; the first layer's makes no gradient for its input.
        input_bytes: The input, as a message.
        output_bytes: The output, as a message; 0 for the last layer.
        output_storage_bytes: The storage behind the output; more than `output_bytes` if the output is a view of a part.
        saved_bytes: Storages that autograd keeps inside, parameters, buffers, input and output excluded.
        input_saved: Autograd keeps the input's storage.
        output_saved: Autograd keeps the output's storage.
        output_is_input: Both have the same storage, as in a reshaping layer.
        split: The backward in two halves. None for the first layer, which has no I, if PyTorch cannot split the
            backward, and in older profiles.
        launch_s: Seconds in which the host launches forward and backward on a GPU; None on synchronous devices, or if
            not measured.
        working_bytes: Peak memory of the backward besides its inputs, from the peak of a GPU's allocator; None on other
            devices, or if not measured.
    """

    microbatch_size: int
    forward_s: float
    backward_s: float
    input_bytes: int
    output_bytes: int
    output_storage_bytes: int
    saved_bytes: int
    input_saved: bool
    output_saved: bool
    output_is_input: bool
    split: LayerSplit | None = None
    launch_s: float | None = None
    working_bytes: int | None = None
