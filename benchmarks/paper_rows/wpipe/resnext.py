"""ResNeXt in 32 groups of width 4 (arXiv:1611.05431) in float32, as layers of kernels.

Parameters, activations and FLOPs follow from the shapes and are exact. A convolution takes the seconds of a product of
matrices with a row for each pixel. Norms, ReLUs and sums move bytes. Launches bound small micro-batches, by the
estimates of `profiles/inside_stage`. A backward takes twice the seconds of its forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipesched.profiles import FLOAT32_BYTES
from pipesched.profiles.costs import UNSAID, LayerCost, LayerMeasurement, LayerSharding, Profile
from pipesched.profiles.inside_stage import Fabric, Operator
from pipesched.profiles.inside_stage.estimated_profile import StageClock
from pipesched.profiles.inside_stage.layer_operators import OperatorPass
from pipesched.profiles.io import load_gpu, load_machine

_GROUPS, _GROUP_WIDTH = 32, 4


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a forward; a product of matrices if it has an inner dimension.

    Attributes:
        numbers: Numbers that it reads and writes for a sample, without weights.
        pixels: Rows of the product, for a sample.
        columns: Columns of the product of a group.
        inner: Inner dimension of the product of a group.
        groups: Products of equal shape.
    """

    numbers: int
    pixels: int = 0
    columns: int = 0
    inner: int = 0
    groups: int = 1

    @property
    def weights(self) -> int:
        """Parameters of the product."""
        return self.groups * self.columns * self.inner

    @property
    def flops(self) -> int:
        """Operations for a sample, two per multiplication."""
        return 2 * self.pixels * self.weights

    def operator(self, size: int) -> Operator:
        """Return the kernel for a micro-batch of `size`."""
        num_bytes = FLOAT32_BYTES * (size * self.numbers + self.weights)
        if not self.inner:
            return Operator("", "memory", 0, num_bytes)
        return Operator(
            "",
            "matmul",
            size * self.flops,
            num_bytes,
            batch=self.groups,
            rows=size * self.pixels,
            columns=self.columns,
            inner=self.inner,
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """The smallest unit of a cut: the stem, a block or the head.

    Attributes:
        parameters: The number of parameters.
        outputs: Numbers in the output of a sample.
        saved: Numbers that autograd keeps inside for a sample, besides the input.
        kernels: The kernels of the forward.
    """

    name: str
    parameters: int
    outputs: int
    saved: int
    kernels: tuple[Kernel, ...]


def resnext(blocks: Sequence[int], image: int = 224, classes: int = 1000) -> list[Layer]:
    """Return the layers of a ResNeXt.

    Args:
        blocks: Blocks of the four stages: 3, 4, 6, 3 is ResNeXt-50.
        image: Height and width of an image in pixels.
        classes: Number of classes.
    """
    size = image // 2
    whole, pooled = 64 * size**2, 64 * (size // 2) ** 2
    stem = Kernel(3 * image**2 + whole, size**2, 64, 49 * 3)
    kernels = (stem, *_normed(whole), Kernel(whole + pooled))
    layers, inputs, size = [Layer("stem", stem.weights + 128, pooled, 2 * whole, kernels)], 64, size // 2
    for stage, count in enumerate(blocks):
        width, outputs = _GROUPS * _GROUP_WIDTH << stage, 256 << stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            layers.append(_block(f"{stage + 1}.{index}", inputs, width, outputs, size, stride, has_shortcut=not index))
            inputs, size = outputs, size // stride
    head = Kernel(inputs + classes, 1, classes, inputs)
    pool = Kernel(inputs * (size**2 + 1))
    return [*layers, Layer("head", head.weights + classes, 0, inputs + classes, (pool, head))]


def _normed(numbers: int) -> tuple[Kernel, Kernel]:
    """Return a batch norm, which reads its input twice, and a ReLU."""
    return Kernel(3 * numbers), Kernel(2 * numbers)


def _block(name: str, inputs: int, width: int, outputs: int, size: int, stride: int, *, has_shortcut: bool) -> Layer:
    """Return 1x1, grouped 3x3 and 1x1 convolutions with batch norms; the inputs of all of them are kept."""
    pixels, small = size**2, (size // stride) ** 2
    inner = 9 * width // _GROUPS
    narrow = Kernel((inputs + width) * pixels, pixels, width, inputs)
    grouped = Kernel(width * (pixels + small), small, width // _GROUPS, inner, _GROUPS)
    wide = Kernel((width + outputs) * small, small, outputs, width)
    shortcut = (Kernel(inputs * pixels + outputs * small, small, outputs, inputs),) if has_shortcut else ()
    norm, relu = _normed(outputs * small)
    kernels = (
        narrow,
        *_normed(width * pixels),
        grouped,
        *_normed(width * small),
        wide,
        norm,
        *(kernel for convolution in shortcut for kernel in (convolution, norm)),
        Kernel(3 * outputs * small),
        relu,
    )
    kept = outputs * (1 + has_shortcut)
    return Layer(
        name,
        sum(kernel.weights for kernel in kernels) + 2 * (2 * width + kept),
        outputs * small,
        2 * width * pixels + (2 * width + kept) * small,
        kernels,
    )


def resnext_profile(blocks: Sequence[int], size: int, slowness: float, step_bytes_per_s: float) -> Profile:
    """Return the profile of a ResNeXt on a V100 of WPipe's cluster.

    Args:
        blocks: Blocks of the four stages.
        size: Samples of a micro-batch; the only size in the profile.
        slowness: Seconds of a forward over the estimate.
        step_bytes_per_s: The rate at which a Step of SGD with momentum reads weights, gradients and momentum, and
            writes two.
    """
    costs = tuple(_costs(resnext(blocks), size, slowness, step_bytes_per_s))
    return Profile("ResNeXt", costs, replace(UNSAID, kind="cuda", dtype="float32", device="V100", optimizer="sgd"))


def _costs(layers: Sequence[Layer], size: int, slowness: float, step_bytes_per_s: float) -> Iterator[LayerCost]:
    node = load_machine("wpipe-v100")
    assert node.inter is not None, "a machine of several nodes has links between them"
    fabric = Fabric(len(node.devices), node.intra, node.inter)
    clock = StageClock(load_gpu("v100"), fabric, LayerSharding(precision="float32"))
    input_bytes = 0
    for layer in layers:
        operators = tuple(kernel.operator(size) for kernel in layer.kernels)
        forward_s = slowness * clock.pass_s(OperatorPass(operators))
        output_bytes = FLOAT32_BYTES * size * layer.outputs
        measured = LayerMeasurement(
            size,
            forward_s,
            2 * forward_s,
            input_bytes,
            output_bytes,
            output_bytes,
            saved_bytes=FLOAT32_BYTES * size * layer.saved,
            input_saved=True,
            output_saved=False,
            output_is_input=False,
        )
        weight_bytes = FLOAT32_BYTES * layer.parameters
        yield LayerCost(layer.name, weight_bytes, weight_bytes, 5 * weight_bytes / step_bytes_per_s, (measured,))
        input_bytes = output_bytes
