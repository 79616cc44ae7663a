"""A profile as JSON: ``{"format": "pipesched-profile", "version": 10, "model": ..., "layers": [...], ...}``.

Earlier versions are not read: a profile of an earlier version is measured again, or estimated again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipesched.profiles import DeviceKind
from pipesched.profiles.costs import LayerCost, LayerTie, Profile, Provenance, SampleWork, SharingPrice, Variation
from pipesched.profiles.io.faults import require_no_faults
from pipesched.profiles.io.model_name import NameFromFile
from pipesched.profiles.io.validation import Record, Sharding, parse_record
from pipesched.schedules import Yardstick
from pipesched.schedules.common import Bytes, Count, Text

_ADVICE = "correct it, or measure the profile again"


class _Provenance(Record):
    becomes: ClassVar[type] = Provenance

    device: Text
    dtype: Text
    threads: Count
    companions: Count
    optimizer: Text
    warmup: Count
    repeats: Count
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    host_cores: Count
    versions: Annotated[dict[Text, Text], Field(max_length=100)]
    date: Text
    kind: DeviceKind = "cpu"
    sharding: Sharding | None = None
    gpu_family: Text | None = None
    yardstick: Yardstick | None = None

    def parts(self) -> dict[str, Any]:
        return {**super().parts(), "versions": tuple(self.versions.items())}


class ProfileRecord(Record):
    """A profile in a file."""

    becomes: ClassVar[type] = Profile

    format: Literal["pipesched-profile"]
    version: Literal[10]
    model: Text
    layers: Annotated[tuple[LayerCost, ...], Field(min_length=1, max_length=100_000)]
    provenance: _Provenance
    variation: Variation | None = None
    sharing: Annotated[tuple[SharingPrice, ...], Field(max_length=1000)] = ()
    sample_work: SampleWork | None = None
    ties: Annotated[tuple[LayerTie, ...], Field(max_length=100_000)] = ()
    tied_bytes: Bytes = 0
    is_tied: bool = False


def read_profile(text: str, file: str) -> Profile:
    """Return the profile in `text`.

    Raises:
        ProfileError: The text is no profile; the message names `file`, the place, the actual and the expected value.
    """
    record = parse_record(ProfileRecord, text, file, _ADVICE)
    profile: Profile = replace(record.value(), model=NameFromFile(record.model, file))
    require_no_faults(file, _inconsistencies(profile), _ADVICE)
    return profile


def profile_text(profile: Profile, file: str) -> str:
    """Return `profile` as JSON for `read_profile`.

    Raises:
        ProfileError: The profile has invalid numbers, such as NaN.
    """
    fields = asdict(replace(profile, graph=None), dict_factory=_with_boundaries)
    del fields["graph"]  # a file has a chain
    fields["provenance"]["versions"] = dict(profile.provenance.versions)
    text = json.dumps({"format": "pipesched-profile", "version": 10, **fields}, indent=1) + "\n"
    read_profile(text, file)
    return text


def _with_boundaries(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a record, without the boundary of a layer with single tensors."""
    return {name: value for name, value in fields if name != "boundary" or value}


def _inconsistencies(profile: Profile) -> list[str]:
    """Return the contradictions between fields of a profile, each valid alone."""
    sizes = list(profile.microbatch_sizes)
    numbers = {"layers.0.measurements: got micro-batch sizes": sizes}
    numbers["sharing: got numbers of processes"] = [price.num_processes for price in profile.sharing]
    numbers |= {f"ties.{index}.layers: got": list(tie.layers) for index, tie in enumerate(profile.ties)}
    faults = [
        f"{got} {given[:8]}, expected rising numbers" for got, given in numbers.items() if given != sorted(set(given))
    ]
    faults += [
        f"ties.{index}.layers: got {tie.layers[-1]}, expected layers below {len(profile.layers)}"
        for index, tie in enumerate(profile.ties)
        if tie.layers[-1] >= len(profile.layers)
    ]
    for index, layer in enumerate(profile.layers):
        own = [measurement.microbatch_size for measurement in layer.measurements]
        if own != sizes:
            faults.append(
                f"layers.{index}.measurements: got micro-batch sizes {own[:8]}, expected {sizes[:8]} as in layer 0"
            )
    return faults or _boundary_faults(profile)


def _boundary_faults(profile: Profile) -> list[str]:
    """Return a fault for each layer whose input is not the output of the layer before."""
    return [
        f"layers.{index}: got input_bytes {after.input_bytes} at micro-batch size {after.microbatch_size}, "
        f"expected {before.output_bytes}, the output_bytes of the layer before"
        for index, layers in enumerate(pairwise(profile.layers), 1)
        for before, after in zip(*(layer.measurements for layer in layers), strict=True)
        if before.output_bytes != after.input_bytes
    ]
