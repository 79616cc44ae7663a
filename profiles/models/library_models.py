"""Models of installed libraries by name, with random weights: ``hf:gpt2`` of transformers, ``tv:resnet50``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from pipesched.profiles import ProfileError
from pipesched.profiles.models.model import Model, class_loss, require_range, users_code
from pipesched.profiles.models.module_sources import ModuleFactory
from pipesched.profiles.models.structures import flattened
from pipesched.profiles.models.text_data import crops
from pipesched.profiles.models.values import Value
from pipesched.profiles.models.whole_module import model_of
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import guess, shown
from pipesched.schedules.formats import load_json, read_bytes

_CONTEXT = 128
"""Default number of tokens of a sample."""
_MOST_TOKENS = 2**14
"""The most tokens of a sample of a model without a limit."""
_IMAGE = 224
"""Default height and width of an image [pixels]."""
_CLASSES = 1000
"""Classes of a model of torchvision, as in ImageNet."""
_NUM_HELD_OUT = 64
"""Held-out samples."""
_MASKED_PERCENT = 15
"""Share of the tokens that a masked language model fills in."""
_IGNORED = -100
"""The target of a token without a loss, as in transformers and torch."""


@final
@dataclass(frozen=True, slots=True)
class _Tokens:
    """Draws tokens: bytes of the text of `text_data`, or random numbers for a vocabulary below 256."""

    vocab: int
    context: int
    text: str

    def draw(self, num_samples: int, length: int, seed: int, is_held_out: bool) -> Tensor:
        if self.vocab >= 256:
            return crops(num_samples, length, seed, self.text, is_held_out=is_held_out)
        generator = torch.Generator().manual_seed(seed + is_held_out)
        return torch.randint(self.vocab, (num_samples, length), generator=generator)

    def next_tokens(self, num_samples: int, seed: int, is_held_out: bool = False) -> tuple[Any, Tensor]:
        """Return tokens, and the next token of each."""
        tokens = self.draw(num_samples, self.context + 1, seed, is_held_out)
        return {"input_ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def translated(self, num_samples: int, seed: int, is_held_out: bool = False) -> tuple[Any, Tensor]:
        """Return (encoder tokens and the following decoder tokens, the next token of each decoder token)."""
        tokens = self.draw(num_samples, 2 * self.context + 1, seed, is_held_out)
        inputs = {"input_ids": tokens[:, : self.context], "decoder_input_ids": tokens[:, self.context : -1]}
        return {key: part.contiguous() for key, part in inputs.items()}, tokens[:, self.context + 1 :].contiguous()

    def masked(self, num_samples: int, seed: int, is_held_out: bool = False) -> tuple[Any, Tensor]:
        """Return (tokens, of which the last token masks an equal number in each sample; the masked tokens)."""
        tokens = self.draw(num_samples, self.context, seed, is_held_out)
        order = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)).argsort(1)
        is_masked = order < max(1, self.context * _MASKED_PERCENT // 100)
        return {"input_ids": tokens.masked_fill(is_masked, self.vocab - 1)}, tokens.masked_fill(~is_masked, _IGNORED)


def _images(
    key: str | None, channels: int, size: int, classes: int, num_samples: int, seed: int, is_held_out: bool = False
) -> tuple[Any, Tensor]:
    """Return random images, as a keyword argument or alone, and random classes."""
    generator = torch.Generator().manual_seed(seed + is_held_out)
    pixels = torch.randn(num_samples, channels, size, size, generator=generator)
    return (pixels if key is None else {key: pixels}), torch.randint(classes, (num_samples,), generator=generator)


def _logits_loss(outputs: Any, targets: Tensor) -> Tensor:
    """Return the mean cross entropy [nats] of the logits; tokens without a loss do not count."""
    logits = outputs if isinstance(outputs, Tensor) else outputs[0] if isinstance(outputs, tuple) else outputs["logits"]
    return class_loss(logits.flatten(0, -2), targets.flatten())


_Drawn: TypeAlias = Callable[..., tuple[Any, Tensor]]
"""(number of samples, seed) -> (inputs, targets)."""

_TASKS = {
    "translated": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING",
    "next_tokens": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "images": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
}
"""The samples of each task, and the mapping of transformers from a configuration to the task's class."""


def hugging_face(kind: str, /, *, context: int = 0, image: int = 0, text: str = "", **fields: Any) -> Model:
    """Return a model of transformers with random weights.

    Args:
        kind: A `model_type` of transformers, or the path of a configuration (``config.json``), which may name a class.
        context: Tokens of a sample (default: 128, or fewer if the model has fewer positions).
        image: Height and width of an image [pixels] (default: from the configuration, else 224).
        text: Training text file; empty for Python's help topics.
        fields: Fields of the configuration.

    Raises:
        ProfileError: transformers is missing, or does not know the model or a field.
    """
    name = f"hf:{kind}"
    library = _imported(name, "transformers.models.auto.configuration_auto", "pip install 'pipesched[hf]'")
    for_model, types = library.AutoConfig.for_model, library.CONFIG_MAPPING_NAMES
    given = _read_config(name, kind) if kind.endswith(".json") else {"model_type": kind}
    kind = str(given.pop("model_type", ""))
    if kind not in types:
        raise ProfileError(
            f"model {name}: got model_type {shown(kind)}, {guess(kind, types)}expected a model_type of transformers; "
            "try hf:gpt2"
        )
    with users_code(f"model {name}: its configuration"), _quiet():
        default = for_model(kind)
        for key in fields:
            if not hasattr(default, key):
                raise ProfileError(
                    f"model {name}: got an unknown argument {key!r}, {guess(key, vars(default))}expected context, "
                    f"image, text or a field of {type(default).__name__}; check its spelling"
                )
        config = for_model(kind, **given | fields)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        if image and hasattr(config, "image_size"):
            config.image_size = image
        task, module_class = _task(name, config)
    drawn: _Drawn
    if task == "images":
        size = image or int(getattr(config, "image_size", None) or _IMAGE)
        drawn = partial(_images, "pixel_values", config.num_channels, size, config.num_labels)
    else:
        of_text = config.get_text_config()
        most = getattr(of_text, "max_position_embeddings", None) or _MOST_TOKENS
        require_range(name, "context", context or 1, 1, most)
        drawn = getattr(_Tokens(of_text.vocab_size, context or min(_CONTEXT, most), text), task)
    return _model(name, partial(_built, module_class, config), drawn)


def torchvision(kind: str, /, *, image: int = _IMAGE, **options: Any) -> Model:
    """Return a model of torchvision with random weights.

    Args:
        kind: The name of a classifier, such as ``resnet50``.
        image: Height and width of an image [pixels].
        options: Arguments of the model.

    Raises:
        ProfileError: torchvision is missing, or does not know the model or an argument.
    """
    name = f"tv:{kind}"
    models = _imported(name, "torchvision.models", "pip install torchvision, as built for this torch")
    known = models.list_models(module=models)
    if kind not in known:
        raise ProfileError(
            f"model {name}: got {shown(kind)}, {guess(kind, known)}expected a model of torchvision.models"
        )
    classes = options.get("num_classes", _CLASSES)
    drawn = partial(_images, None, 3, image, classes)
    return _model(name, partial(models.get_model, kind, weights=None, **options), drawn)


def _model(name: str, factory: Callable[[], nn.Module], drawn: _Drawn) -> Model:
    with users_code(f"model {name}: its class"):
        source = ModuleFactory(factory, lambda made: made)
    model = model_of(name, source.outline, source.module, _logits_loss, drawn)
    return replace(model, held_out=partial(_held_out, drawn))


def _held_out(drawn: _Drawn) -> tuple[Value, Value]:
    inputs, targets = (flattened(part)[0] for part in drawn(_NUM_HELD_OUT, 0, is_held_out=True))
    return inputs, targets


def _task(name: str, config: Any) -> tuple[str, Callable[[Any], nn.Module]]:
    """Return the task of a configuration, and the class for it: the named one, or the first that transformers has."""
    auto = import_module("transformers.models.auto.modeling_auto")
    classes = {task: getattr(auto, mapping) for task, mapping in _TASKS.items()}
    known: dict[str, Any] = {
        task: mapping[type(config)] for task, mapping in classes.items() if type(config) in mapping
    }
    for architecture in config.architectures or ():
        for task, module_class in known.items():
            if module_class.__name__ == architecture:
                return task, module_class
    if not known or config.architectures:
        raise ProfileError(
            f"model {name}: got {', '.join(config.architectures or ()) or type(config).__name__}, expected a language "
            f"model or a classifier of images; try {next(iter(known.values())).__name__ if known else 'hf:gpt2'} as "
            "architecture, or write a factory that returns (module, loss, batch)"
        )
    suited = [task for task in known if config.is_encoder_decoder or task != "translated"] or [*known]
    return suited[0], known[suited[0]]


def _built(module_class: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    with _quiet():
        return module_class(copy.deepcopy(config))


def _read_config(name: str, path: str) -> dict[str, Any]:
    try:
        fields = load_json(read_bytes(path).decode(), path)
    except (ScheduleError, UnicodeDecodeError) as error:
        raise ProfileError(f"model {name}: {error}") from error
    if not isinstance(fields, dict):
        raise ProfileError(f"{path}: got {type(fields).__name__}, expected an object with model_type; try hf:gpt2")
    return {str(key): value for key, value in fields.items() if key != "auto_map"}  # its code is never loaded


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep advice of transformers on tokens, which are not used here, away from the terminal."""
    logging: Any = import_module("transformers.utils.logging")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _imported(name: str, module: str, command: str) -> Any:
    """Return a module of a library, or refuse the model `name` with the command that installs the library."""
    try:
        return import_module(module)
    except Exception as error:  # torchvision raises RuntimeError beside a torch that it was not built for
        library = module.partition(".")[0]
        raise ProfileError(
            f"model {name}: got no importable package {library}, expected it installed; try {command}"
        ) from error
