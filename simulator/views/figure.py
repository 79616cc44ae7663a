"""The common parts of all figures: suffixes, palette, size and font, and writing the whole file or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pipesched.schedules import ScheduleError
from pipesched.schedules.common import Description, shown
from pipesched.schedules.formats import suffix_of, whole_file
from pipesched.simulator import SimulationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
GANTT_SUFFIXES = (*FIGURE_SUFFIXES, ".html")
"""Suffixes of a Gantt chart, which may be a page too."""
INK, FAINT, IDLE, PAPER = "#22272e", "#6f7a87", "#edf0f4", "#f7f8fa"
"""Colours of text, of less important text, of idle time, and of the background."""
HAND_OVER = "#a3875c"
"""The colour of a rank's own time between its works."""
BLUE, ORANGE, RED, VIOLET, TEAL, YELLOW, PINK = (
    "#4477b8", "#ee9a4d", "#d9605b", "#8c79bd", "#3fa294", "#f2c75c", "#c06fa6",
)  # fmt: skip
GREEN, DARK_GREEN, LIME, BROWN, DARK_TEAL, OLIVE = "#74b56b", "#2f7d4f", "#b9c24b", "#6e5136", "#1f5552", "#7d7f2e"
"""Colours of the causes of idle time, which no op has."""
DARK_BLUE, DARK_ORANGE, DARK_RED, DARK_VIOLET, SLATE = "#2b5a98", "#c4691a", "#c2410c", "#57458c", "#3d4653"
GREY, PALE_GREY, FAINT_GREY = "#9aa3ad", "#afb8c1", "#c3c9d0"
BLACK, WHITE = "black", "white"
CURVE_COLOURS = (BLACK, *(f"C{index}" for index in range(10)))
"""Colours of curves, in turn."""
STALENESS_MAP, COPIES_MAP, HEAT_MAP = "PuOr_r", "PRGn", "YlGnBu"
"""Scales of colours: orange is behind and violet ahead; green is copies; dark blue is much."""

_DPI = 160.0
"""Resolution of pictures in pixels [per inch]."""
_MOST_PIXELS = 65_000  # a side; more is refused by matplotlib


def require_suffix(path: Path | str, known: tuple[str, ...]) -> str:
    """Return the suffix of `path` in small letters.

    Raises:
        SimulationError: The suffix is not one of `known`.
    """
    suffix = suffix_of(path)
    if suffix not in known:
        raise SimulationError(f"{path}: got suffix {suffix!r}, expected {' or '.join(known)}; try {path}{known[0]}")
    return suffix


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write `data` to `path`: all of it, or nothing.

    Raises:
        SimulationError: The file cannot be written.
    """
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(data)
    except ScheduleError as error:
        raise SimulationError(str(error)) from error


_DATES: Mapping[str, Mapping[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Metadata without a date, so that the same picture is the same file."""


def save_figure(draw: Callable[[], Figure], path: Path | str) -> None:
    """Write the result of `draw` to `path` (.png, .svg or .pdf): all of it, or nothing; `draw` needs a valid suffix.

    Raises:
        SimulationError: The suffix is another one, or it cannot be written.
    """
    suffix, figure, data = require_suffix(path, FIGURE_SUFFIXES), draw(), BytesIO()
    figure.savefig(
        data,
        format=suffix[1:],
        dpi=min(_DPI, _MOST_PIXELS / max(figure.get_size_inches())),
        metadata=_DATES.get(suffix),
    )
    write_bytes(path, data.getvalue())


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

    panel: ClassVar[str] = "Output"

    width_in: Annotated[float | None, Description("Width [inches].", has_option=False)] = None
    height_in: Annotated[float | None, Description("Height [inches].", has_option=False)] = None
    font: Annotated[str | None, Description("Font family of the picture, as serif.", more="With --out.")] = None
    font_size: Annotated[float, Description("Size of most text [points].", more="With --out.")] = _USUAL_POINTS

    def __post_init__(self) -> None:
        """Refuse sizes out of range and fonts that matplotlib does not find.

        Raises:
            SimulationError: A size is out of range, or a font is missing.
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
                    f"picture: got font {shown(self.font)}, expected an installed font, serif, sans-serif or "
                    f"monospace; try one of {near}"
                ) from None

    @property
    def scale(self) -> float:
        """Return the factor on all text."""
        return self.font_size / _USUAL_POINTS
