"""Any module as a chain of layers: its traced graph, retraced for other batch sizes, number types and modes."""

from __future__ import annotations

import copy
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from pipesched.profiles import ProfileError
from pipesched.profiles.models.cut_points import CutRule, owner_name, state_name
from pipesched.profiles.models.graph_layers import CutGraph, LayerFunction
from pipesched.profiles.models.kept_state import kept_random_state
from pipesched.profiles.models.structures import Structure
from pipesched.profiles.models.traced_lines import is_of_torch, users_line
from pipesched.profiles.models.values import Value, tensors_of
from pipesched.schedules.common import error_text

Signature: TypeAlias = tuple[tuple[torch.Size, torch.dtype], ...]
"""Shape and number type of each tensor."""


def signature(tensors: Sequence[Tensor]) -> Signature:
    """Return the shape and number type of each tensor."""
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


class _Called(nn.Module):
    """A module called with tensors alone: the structure of its arguments is a constant."""

    def __init__(self, module: nn.Module, inputs: Structure) -> None:
        super().__init__()
        self.module = module
        self._inputs = inputs

    def forward(self, *tensors: Tensor) -> Any:
        """Call the module: a dictionary gives keyword arguments, a tuple positional ones."""
        arguments = self._inputs.restored(tensors)
        if isinstance(arguments, dict):
            return _traceable(self.module(**arguments))
        return _traceable(self.module(*arguments) if isinstance(arguments, tuple) else self.module(arguments))


def _traceable(output: Any) -> Any:
    """Return a module's output; None stands for objects of other types in a dictionary, such as a cache."""
    if not isinstance(output, dict):
        return output
    kept = copy.copy(output)
    for name, item in output.items():
        if not isinstance(item, Tensor | tuple | list | dict | str | int | float | None):
            kept[name] = None
    return kept


@final
class Tracer:
    """Traces a module and cuts its graph; keeps a graph for each batch size, number type and mode.

    Copies of layers share it. It holds no weights: its copy of the module has parameters in memory that nobody touches.

    Args:
        module: The module, with or without weights.
        inputs: The structure of its inputs.
        example: The tensors of the inputs of one micro-batch.
        cuts: Names of submodules to cut before; none for the rule of `CutRule`.

    Attributes:
        names: The names of the layers.
        states: For each layer, the names of its parameters and buffers.
        kinds: For each layer, a hash that equal layers share.
        training: The mode of the layers: True if any submodule trains; then each is traced in its own mode.
        dtype: The number type of the module's first floating-point tensor.

    Raises:
        ProfileError: The module cannot be traced with the example, or cannot be cut.
    """

    def __init__(self, module: nn.Module, inputs: Structure, example: Sequence[Tensor], cuts: Sequence[str]) -> None:
        tensors = dict(_named_tensors(module))
        self._aliases = _aliases(tensors)
        self._dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        self._module = _copied(module)
        self._inputs = inputs
        self._rule = CutRule(module, cuts)
        self.training = any(part.training for part in module.modules())
        self.dtype = next((dtype for dtype in self._dtypes.values() if dtype.is_floating_point), torch.float32)
        self._graphs: dict[tuple[bool, torch.dtype | None, Signature], CutGraph] = {}
        self._functions: dict[object, tuple[LayerFunction, tuple[str, ...]]] = {}
        first = self._traced(self.training, None, signature(example))
        self.names = first.names
        self.kinds = tuple(map(first.kind, range(len(first.names))))
        kept = {*dict(module.named_parameters(remove_duplicate=False)), *module.state_dict()}
        self.states = self._states(first, [name for name in tensors if name in kept])

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracer:
        return self

    def function(
        self, layer: int, entering: Signature, device: torch.device, *, training: bool, dtype: torch.dtype
    ) -> tuple[LayerFunction, tuple[str, ...]]:
        """Return the function of a layer, and the names in the layer of the state tensors that it takes.

        Args:
            layer: The number of the layer.
            entering: The tensors that enter it.
            device: Their device.
            training: The mode.
            dtype: The number type of the layer's first floating-point tensor.

        Raises:
            ProfileError: The module cannot be traced for these tensors.
        """
        key = layer, entering, device, training, dtype
        if key not in self._functions:
            wanted = None if dtype == self.native_dtype(layer) else dtype
            graph = self._graph(layer, entering, training, wanted)
            function, names = graph.compiled(layer, device)
            self._functions[key] = function, tuple(self._name_in(layer, graph, name) for name in names)
        return self._functions[key]

    def native_dtype(self, layer: int) -> torch.dtype:
        """Return the number type of the first floating-point tensor of a layer, in the module as it was given."""
        dtypes = (self._dtypes[name] for name in self.states[layer])
        return next((dtype for dtype in dtypes if dtype.is_floating_point), self.dtype)

    def restored_output(self, value: Value) -> Any:
        """Return the output of the module from the value that leaves the last layer."""
        leaves = tensors_of(value)
        graph = next(graph for graph in self._graphs.values() if graph.num_outputs == len(leaves))
        return graph.restored_output(leaves)

    def _graph(self, layer: int, entering: Signature, training: bool, dtype: torch.dtype | None) -> CutGraph:
        if layer == 0:
            return self._traced(training, dtype, entering)
        shapes = [shape for shape, _ in entering]
        alike = [key for key in self._graphs if key[:2] == (training, dtype)]
        for key in alike:
            if self._graphs[key].shapes(layer) == shapes:
                return self._graphs[key]
        for key in alike or [*self._graphs]:
            inputs = _resized(key[2], self._graphs[key].shapes(layer), shapes)
            if inputs is None:
                continue
            if dtype is not None:
                inputs = tuple((shape, dtype if kind.is_floating_point else kind) for shape, kind in inputs)
            graph = self._traced(training, dtype, inputs)
            if graph.shapes(layer) == shapes:
                return graph
        raise ProfileError(
            f"layer {self.names[layer]}: got tensors of the shapes {[*map(tuple, shapes)]}, expected shapes as for a "
            "micro-batch with another number of samples; pad samples to one length"
        )

    def _traced(self, training: bool, dtype: torch.dtype | None, inputs: Signature) -> CutGraph:
        key = training, dtype, inputs
        if key not in self._graphs:
            module = self._module if dtype is None else _without_weights(self._module, dtype)
            with _in_mode(module, training if training != self.training else None), _tracing():
                called = _Called(module, self._inputs)
                tensors = tuple(torch.zeros(shape, dtype=kind) for shape, kind in inputs)
                graph = torch.export.export(called, tensors, strict=False).module()
            _require_known_shapes(graph)
            cut = CutGraph(graph, self._rule, self._dtypes)
            if self._graphs and cut.names != self.names:
                raise ProfileError(
                    f"got the layers {', '.join(cut.names)} in another mode or for another batch size, expected "
                    f"{', '.join(self.names)}; cut at modules that always run"
                )
            self._graphs[key] = cut
        return self._graphs[key]

    def _states(self, graph: CutGraph, kept: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Return the state names of each layer; unused tensors belong to the layer of the tensor before them."""
        used: list[set[str]] = []
        for layer in range(len(graph.names)):
            uses = graph.uses(layer)
            used.append({self._alias(owner_name(node, tensor), state_name(tensor)) for node, tensor in uses})
        layer_of = {name: layer for layer in reversed(range(len(used))) for name in used[layer]}
        aliases_used = {alias for name in layer_of for alias in self._aliases[name]}
        layer = 0
        for name in kept:
            if name in layer_of:
                layer = layer_of[name]
            elif name not in aliases_used and self._aliases[name][0] == name:
                used[layer].add(name)
        order = {name: index for index, name in enumerate(self._dtypes)}
        return tuple(tuple(sorted(names, key=order.__getitem__)) for names in used)

    def _alias(self, owner: str, name: str) -> str:
        """Return the name that the module `owner` has for a tensor, else the tensor's first name."""
        aliases = self._aliases[name]
        return next((alias for alias in aliases if alias.rpartition(".")[0] == owner), aliases[0])

    def _name_in(self, layer: int, graph: CutGraph, name: str) -> str:
        own = next((alias for alias in self._aliases[name] if alias in self.states[layer]), None)
        if own is None:
            raise ProfileError(
                f"layer {graph.names[layer]}: got a use of {name} in another mode or for another batch size, expected "
                "the parameters of the first batch; cut elsewhere"
            )
        return own


@final
class TracedLayer(nn.Module):
    """A layer of a traced module. Its parameters and buffers have the names that the module gives them.

    Args:
        tracer: The tracer of the module.
        index: The number of the layer.
        module: The module whose tensors the layer uses: the same objects, no copies.
    """

    def __init__(self, tracer: Tracer, index: int, module: nn.Module) -> None:
        super().__init__()
        self._tracer = tracer
        self._index = index
        self._places: dict[str, tuple[nn.Module, str]] = {}
        self.training = tracer.training
        tensors, persistent = dict(_named_tensors(module)), module.state_dict()
        for name in tracer.states[index]:
            path, _, leaf = name.rpartition(".")
            owner = _submodule(self, path, tracer.training)
            tensor = tensors[name]
            if isinstance(tensor, nn.Parameter):
                owner.register_parameter(leaf, tensor)
            else:
                owner.register_buffer(leaf, tensor, persistent=name in persistent)
            self._places[name] = owner, leaf
        floating = (name for name in tracer.states[index] if tensors[name].is_floating_point())
        if (first := next(floating, None)) is None:  # follows .to(dtype), as the tensors of other layers do
            self.register_buffer("number_type", torch.empty(0, dtype=tracer.dtype), persistent=False)
        self._typed = (self, "number_type") if first is None else self._places[first]

    def forward(self, value: Value) -> Value:
        """Run the layer on the value that enters it."""
        tensors = tensors_of(value)
        owner, leaf = self._typed
        function, names = self._tracer.function(
            self._index,
            signature(tensors),
            tensors[0].device,
            training=self.training,
            dtype=getattr(owner, leaf).dtype,
        )
        state = (getattr(*self._places[name]) for name in names)
        leaving = function(*tensors, *state)
        return leaving[0] if len(leaving) == 1 else leaving


def _submodule(module: nn.Module, path: str, training: bool) -> nn.Module:
    """Return the submodule at a dotted path; plain modules are made on the way."""
    for name in filter(None, path.split(".")):
        if name not in dict(module.named_children()):
            module.add_module(name, nn.Module().train(training))
        module = module.get_submodule(name)
    return module


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _aliases(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Return for each name all names of its tensor, in order."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return {name: tuple(names[id(tensor)]) for name, tensor in tensors.items()}


def _without_weights(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """Return a copy on the CPU whose parameters are uninitialised, with floating-point tensors as `dtype`."""
    empty: dict[int, Any] = {}
    for parameter in module.parameters():
        its_dtype = dtype if dtype is not None and parameter.is_floating_point() else parameter.dtype
        memory = torch.empty_like(parameter, dtype=its_dtype, device="cpu", requires_grad=False)
        empty[id(parameter)] = nn.Parameter(memory, parameter.requires_grad)
    return copy.deepcopy(module, empty).to("cpu", dtype)


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy of a user's module by `_without_weights`, with the number types as they are."""
    try:
        return _without_weights(module, None)
    except Exception as error:  # a user's module may hold anything
        message = error_text(error)
        raise ProfileError(
            f"got {type(error).__name__} ({message}) in copy.deepcopy of the module, expected a module that can be "
            "copied; keep other tensors as buffers, and use torch.nn.utils.parametrizations for weight_norm"
        ) from error


def _resized(inputs: Signature, before: Sequence[torch.Size], now: Sequence[torch.Size]) -> Signature | None:
    """Return the inputs of a micro-batch for which tensors inside the module have the shapes `now` instead of `before`.

    Dimension 0 of an input is the number of samples. If this number changed within a product, such as samples times
    positions, it changes in proportion.
    """
    if [len(shape) for shape in before] != [len(shape) for shape in now]:
        return None
    sizes = {old: new for a, b in zip(before, now, strict=True) for old, new in zip(a, b, strict=True) if old != new}
    samples = next((shape[0] for shape, _ in inputs if shape), 1)
    for old, new in sizes.items():
        if old % samples == 0 and new * samples % old == 0:
            sizes.setdefault(samples, new * samples // old)
            break
    lengths = {old: new for old, new in sizes.items() if old != samples}
    return tuple(
        (
            torch.Size(
                (*(sizes.get(size, size) for size in shape[:1]), *(lengths.get(size, size) for size in shape[1:]))
            ),
            dtype,
        )
        for shape, dtype in inputs
    )


@contextmanager
def _in_mode(module: nn.Module, training: bool | None) -> Iterator[None]:
    """Put a module into a mode; None: leave each submodule in its own."""
    modes = {m: m.training for m in module.modules()}
    if training is not None:
        module.train(training)
    try:
        yield
    finally:
        for m, mode in modes.items():
            m.training = mode


@contextmanager
def _tracing() -> Iterator[None]:
    """Trace without a change of the random state, and without warnings; report an error by the user's line alone."""
    printed = io.StringIO()
    try:
        with (
            redirect_stderr(printed),  # the tracer prints the graph up to an error
            _silent_logs(),
            kept_random_state(),
            warnings.catch_warnings(action="ignore"),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            yield
    except Exception as error:  # noqa: BLE001 -- a user's code may raise anything
        raise ProfileError(_trace_fault(error)) from None  # a page of the tracer otherwise
    sys.stderr.write(printed.getvalue())


_LOGS = tuple(map(logging.getLogger, ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")))
"""They print errors that are reported here."""


@contextmanager
def _silent_logs() -> Iterator[None]:
    levels = [log.level for log in _LOGS]
    for log in _LOGS:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(_LOGS, levels, strict=True):
            log.setLevel(level)


def _require_known_shapes(graph: torch.fx.GraphModule) -> None:
    """Refuse a tensor whose shape depends on values of tensors: a stage must know the shapes that arrive."""
    for node in graph.graph.nodes:
        made = node.meta.get("val")
        if isinstance(made, Tensor) and not all(isinstance(size, int) for size in made.shape):
            call = users_line(node)
            raise ProfileError(("" if call is None else f"{call.file}:{call.line}: ") + _DEPENDS.format(""))


_DEPENDS = (
    "got a branch or a shape that depends on values of tensors{}, expected a forward that runs the same operations for "
    "every batch; use torch.where, or give the model as a list of layers, which is cut between its layers without a "
    "trace"
)
_LAYERS = Path(nn.__file__).parent


def _trace_fault(error: Exception) -> str:
    all_frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in all_frames if not frame.filename.startswith("<") and not is_of_torch(frame.filename)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    message = error_text(error)
    if "data-dependent" in str(error).lower() or "DataDependent" in type(error).__name__:
        inner = [frame for frame in all_frames if Path(frame.filename).is_relative_to(_LAYERS)]
        inside = f" (in {inner[-1].name} of torch.nn)" if inner and inner[-1].name != "_call_impl" else ""
        return where + _DEPENDS.format(inside)
    return (
        f"{where}got {type(error).__name__} ({message}) in forward, expected a result for the example; correct the "
        "model or the example"
    )
