"""The size and font of a picture."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.schedules.common import shown
from pipesched.simulator import SimulationError

_USUAL_POINTS = 10.0
"""Font size of most text in a figure of the usual style [points]."""
_LARGEST_IN, _LARGEST_POINTS = 100.0, 100.0
"""Largest width or height [inches], and largest font size [points]."""


@dataclass(frozen=True, slots=True)
class FigureStyle:
    """The size and font of a picture.

    Attributes:
        width_in: Width [inches], or None to choose it by the number of ops.
        height_in: Height [inches], or None to choose it by the number of rows.
        font: A font family that matplotlib finds, such as ``serif``, or None for the font of matplotlib's settings.
        font_size: Size of most text [points]; headings are larger and axis labels smaller, by fixed ratios.
    """

    width_in: float | None = None
    height_in: float | None = None
    font: str | None = None
    font_size: float = _USUAL_POINTS

    def __post_init__(self) -> None:
        """Refuse sizes out of range and fonts that matplotlib does not find.

        Raises:
            SimulationError: There is one.
        """
        for name, value, most in (
            ("width", self.width_in, _LARGEST_IN),
            ("height", self.height_in, _LARGEST_IN),
            ("font size", self.font_size, _LARGEST_POINTS),
        ):
            if value is not None and not 0 < value <= most:
                unit = "points" if name == "font size" else "inches"
                raise SimulationError(f"picture: got a {name} of {value:g} {unit}, expected above 0, at most {most:g}")
        if self.font is not None:
            from matplotlib.font_manager import findfont, get_font_names  # takes a second to load

            try:
                findfont(self.font, fallback_to_default=False)
            except ValueError:
                near = ", ".join(sorted(get_font_names())[:4])
                raise SimulationError(
                    f"picture: got font {shown(self.font)}, expected an installed one or serif, sans-serif or "
                    f"monospace; some are {near}"
                ) from None

    @property
    def scale(self) -> float:
        """Return the factor on all text."""
        return self.font_size / _USUAL_POINTS
