"""The profile of a model, with tables and plots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.profiles.costs import Profile
from pipesched.profiles.io import profile_text, save_profile
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.workflows import Table, require_path, with_equal_in_one

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, repr=False)
class ProfileMeasurement:
    """The profile of a model, measured or estimated according to its provenance.

    Attributes:
        profile: Seconds and bytes of every layer at each size, for `simulate`, `compare`, `run` and `verify`.
        notes: Cautions about the seconds, a line each.
    """

    profile: Profile
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ProfileMeasurement({self.profile.model!r}, microbatch_sizes={self.profile.microbatch_sizes})"

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON.

        Raises:
            ArgumentError: `path` is no name of a file.
            ProfileError: The file cannot be written.
        """
        save_profile(self.profile, require_path(path))

    def to_json(self) -> str:
        """Return the text that `save` writes."""
        return profile_text(self.profile, "the profile")

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per layer and micro-batch size."""
        return [
            {
                "layer": index,
                "name": layer.name,
                "microbatch_size": measured.microbatch_size,
                "forward_s": measured.forward_s,
                "backward_s": measured.backward_s,
                "step_s": layer.step_s,
                "weight_bytes": layer.weight_bytes,
                "saved_bytes": measured.saved_bytes,
                "output_bytes": measured.output_bytes,
            }
            for index, layer in enumerate(self.profile.layers)
            for measured in layer.measurements
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per layer and micro-batch size."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def plot(self) -> Figure:
        """Draw seconds and saved bytes of every layer at the largest size."""
        from pipesched.simulator.views import profile_figure

        return profile_figure(self.profile)

    def table(self) -> Table:
        """Return a row per layer at the largest size, equal neighbours in one, formatted for people."""
        rows = [
            {
                "layer": f"{index} {layer.name}",
                "forward": readable_s(layer.measurements[-1].forward_s),
                "backward": readable_s(layer.measurements[-1].backward_s),
                "weights": readable_bytes(layer.weight_bytes),
                "saved": readable_bytes(layer.measurements[-1].saved_bytes),
                "output": readable_bytes(layer.measurements[-1].output_bytes),
                "step": readable_s(layer.step_s),
                "copy": "-" if layer.work is None else readable_s(layer.work.copy_s),
                "predict": "-" if layer.work is None else readable_s(layer.work.predict_s),
                "average": "-" if layer.work is None else readable_s(layer.work.average_s),
            }
            for index, layer in enumerate(self.profile.layers)
        ]
        title = f"{self.profile.model}, micro-batches of {self.profile.microbatch_sizes[-1]}"
        prices = [
            f"{price.factor:.3g} times the processor time where {price.num_processes} processes share a core"
            for price in self.profile.sharing
        ]
        return Table(title, with_equal_in_one(rows, " to "), "; ".join([self.profile.provenance.device, *prices]))

    def _repr_html_(self) -> str:
        return self.table().noted(self.notes).to_html()
