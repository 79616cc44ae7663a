"""Build the module of a model with the user's factory, and allocate memory for the needed parameters alone."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from pipesched.profiles import ProfileError
from pipesched.profiles.models.kept_state import kept_random_state


@final
class ModuleFactory:
    """A function that builds a module: it runs once for the outline, and once for each range of layers.

    Parameters that a range does not need stay on the meta device, without memory. Every parameter draws from seeds of
    its own, so the weights of a layer do not depend on the range. A range builds the whole module if the factory fails
    or registers other parameters without memory.

    Args:
        factory: Builds the module anew in each call.
        module_of: Returns the module from the result of the factory.

    Attributes:
        result: The result of the first run.
        has_memory: Whether the parameters of the first run have memory.
    """

    def __init__(self, factory: Callable[[], Any], module_of: Callable[[Any], nn.Module]) -> None:
        self._factory = factory
        self._module_of = module_of
        self._first = _FactoryRun(0, ())
        try:
            self.result = self._first.result_of(factory)
            self.has_memory = self._first.num_parameters == 0
        except Exception:  # noqa: BLE001 -- a factory that fails without memory may work with it
            self.result = _FactoryRun(0, None).result_of(factory)
            self.has_memory = True

    @property
    def outline(self) -> nn.Module:
        """The module; its parameters may have no memory."""
        return self._module_of(self.result)

    def module(self, names: Collection[str], seed: int) -> nn.Module:
        """Return the module with at least the parameters `names` in memory, as drawn for `seed`."""
        order = self._first.numbers(self.outline)
        if not self.has_memory and None not in order.values():
            run = _FactoryRun(seed, {order[name] for name in names if name in order})
            try:
                module = self._module_of(run.result_of(self._factory))
            except Exception:  # noqa: BLE001, S110 -- a factory that fails with some parameters may work with all
                pass
            else:
                if run.numbers(module) == order:
                    return _with_memory(module, names)
        module = self._module_of(_FactoryRun(seed, None).result_of(self._factory))
        _with_memory(module, self._first.numbers(module))
        return copy.deepcopy(module) if module is self.outline else module  # made when its file was imported


def _with_memory(module: nn.Module, names: Collection[str]) -> nn.Module:
    """Return the module; raises ProfileError if one of the parameters `names` has no memory."""
    if any(tensor.is_meta for name, tensor in module.named_parameters(remove_duplicate=False) if name in names):
        raise ProfileError(
            "got a factory that reuses its module or builds it on the meta device, expected a new module with weights "
            "in each call; build the module inside the factory"
        )
    return module


_RANDOM: Final = frozenset(
    {"bernoulli", "multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randint_like", "randn"}
    | {"randn_like", "randperm"}
)
"""Functions that make random tensors."""


class _FactoryRun(TorchFunctionMode):
    """One run of a factory: numbers its parameters, and seeds the random numbers of each.

    Torch's generator gets a new seed at the registration of a parameter, around each function of a parameter or of a
    tensor derived from it, and before each function that makes a random tensor.

    Args:
        seed: Seed of the run.
        kept: Numbers of the parameters with memory, in the order of registration; None for all.
    """

    def __init__(self, seed: int, kept: Collection[int | None] | None) -> None:
        super().__init__()
        self._seed = seed
        self._kept = kept
        self._numbers = WeakIdKeyDictionary()
        self._derived = WeakIdKeyDictionary()
        self._outlines = WeakIdKeyDictionary()
        self._num_seeds: Counter[str] = Counter()
        self._is_replacing = False
        self.num_parameters = 0

    def result_of(self, factory: Callable[[], Any]) -> Any:
        """Run the factory and return its result; its parameters are registered here."""
        hook = register_module_parameter_registration_hook(self._registered)  # type: ignore[arg-type]  # it may return one
        try:
            with kept_random_state(self._seed), warnings.catch_warnings(), self:
                warnings.filterwarnings("ignore", ".*non-meta parameter")  # weights that the factory loads
                return factory()
        finally:
            hook.remove()

    def numbers(self, module: nn.Module) -> dict[str, int | None]:
        """Return the number of each parameter, or None if the factory has not registered it, by name."""
        parameters = module.named_parameters(remove_duplicate=False)
        return {name: self._numbers.get(parameter) for name, parameter in parameters}  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords = keywords or {}
        if self._is_replacing:
            return function(*arguments, **keywords)
        number = self._number_in((*arguments, *keywords.values()))
        name = getattr(function, "__name__", "")
        generator = keywords.get("generator") or torch.default_generator
        if number is not None:
            self._reseed(f"parameter {number}", generator)
        elif name in _RANDOM:
            self._reseed(f"tensor after {self.num_parameters} parameters", generator)
        result = function(*arguments, **keywords)
        if number is not None:
            self._reseed(f"parameter {number}", generator)
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, Tensor):
                    self._derived[tensor] = number
        return result

    def _number_in(self, values: Iterable[Any]) -> int | None:
        """Return the number of the first parameter, or tensor derived from one, among `values`."""
        for value in values:
            if isinstance(value, Tensor):
                number = self._numbers.get(value, self._derived.get(value))  # type: ignore[no-untyped-call]
                if number is not None:
                    return int(number)
        return None

    def _reseed(self, what: str, generator: torch.Generator = torch.default_generator) -> None:
        text = f"seed {self._num_seeds[what]} of {what} of seed {self._seed}"
        self._num_seeds[what] += 1
        generator.manual_seed(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1)

    def _registered(self, module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:  # noqa: ARG002
        if is_lazy(parameter) or parameter in self._numbers:
            return None
        if parameter not in self._outlines:
            number = self.num_parameters
            self.num_parameters += 1
            self._reseed(f"parameter {number}")
            if self._kept is None or number in self._kept:
                self._numbers[parameter] = number
                return None
            self._is_replacing = True
            outline = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
            self._is_replacing = False
            vars(outline).update(vars(parameter))
            self._numbers[outline] = number
            self._outlines[parameter] = outline
        return self._outlines[parameter]  # type: ignore[no-any-return]
