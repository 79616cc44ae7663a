"""Layers of each stage as text: counts, or the pipeline layout of Megatron-LM.

    3,3,4                counts
    Et*2|(tt|)*3t*2L     ``--pipeline-model-parallel-layout``: a letter for each layer, a bar between stages
                         (E embedding, t transformer layer, m multi-token prediction, L output layer)

``t*3`` is ``ttt``, ``(tt|)*2`` is ``tt|tt|``, and commas mean nothing, as in megatron-core 0.16.1
(`transformer/pipeline_parallel_layer_layout.py`). Stages follow the model; interleaved, stage s is on rank s mod p.
"""

from __future__ import annotations

import re

from pipesched.profiles import ProfileError

_LAYOUT = re.compile(r"[EtmL|()*0-9, ]*[EtmL|][EtmL|()*0-9, ]*")
_GROUP = re.compile(r"\(([^()]+)\)\*([0-9]{1,6})")
_LETTER = re.compile(r"([EtmL|])\*([0-9]{1,6})")
_ORDER = re.compile(r"E?t*m*L?")
_MAX_LETTERS = 100_000


def stage_sizes(text: str, others: str = "") -> list[int]:
    """Return the number of layers of each stage.

    Args:
        text: Counts or a layout.
        others: Other accepted words in a message, such as ``uniform, balanced, ``.

    Raises:
        ProfileError: `text` is neither counts nor a layout.
    """
    if _LAYOUT.fullmatch(text):
        return [len(stage) for stage in _letters(text).split("|")]
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ProfileError(
            f"partition: got {text[:60]!r}, expected {others}layers per stage or a layout of Megatron-LM; "
            "try 3,3,4 or Ettt|ttt|tttL"
        ) from None


def _letters(text: str) -> str:
    """Return a layout letter by letter, without repetitions."""
    letters = re.sub("[, ]", "", text)
    for repeated in (_GROUP, _LETTER):
        if sum(len(unit) * int(count) for unit, count in repeated.findall(letters)) > _MAX_LETTERS:
            raise ProfileError(
                f"partition: got {text[:60]!r}, expected a layout of at most {_MAX_LETTERS} layers; try fewer"
            )
        letters = repeated.sub(lambda match: match[1] * int(match[2]), letters)
    if not _ORDER.fullmatch(letters.replace("|", "")):
        raise ProfileError(
            f"partition: got {text[:60]!r}, expected a layout of Megatron-LM: E first, t, m and L last, with a bar "
            "between stages and *3 or (tt|)*3 to repeat; try Ettt|ttt|tttL"
        )
    return letters
