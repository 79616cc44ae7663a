"""A figure that a notebook shows without pyplot, and whose files keep text as text."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from pipesched.simulator.views.figure import FigureStyle


class ShownFigure(Figure):
    """A matplotlib Figure that Jupyter always shows; it shows a plain one only after pyplot has made a figure."""

    def savefig(self, fname: Any, *, has_outlines: bool = False, **options: Any) -> None:
        """Write the figure as matplotlib does: text as text in TrueType fonts, and the same bytes every time.

        Args:
            fname: A path or an open file.
            has_outlines: Whether SVG has the outlines of letters in place of text.
            options: As `matplotlib.figure.Figure.savefig` takes them.
        """
        letters = "path" if has_outlines else "none"
        with rc_context({"svg.fonttype": letters, "pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "pipesched"}):
            super().savefig(fname, **options)

    def restyled(self, style: FigureStyle) -> ShownFigure:
        """Set the font of every text, and scale the figure and its texts to the font size; return the figure.

        Legends have their final size already: matplotlib derives their spacing from it when they are made.
        """
        final = {text for legend in self.legends for text in legend.get_texts()}
        for text in self.findobj(Text):
            assert isinstance(text, Text)
            if text not in final:
                text.set_fontsize(float(text.get_fontsize()) * style.scale)
            if style.font is not None:
                text.set_fontfamily(style.font)
        width_in, height_in = self.get_size_inches()
        self.set_size_inches(width_in * style.scale, height_in * style.scale)
        return self

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()
