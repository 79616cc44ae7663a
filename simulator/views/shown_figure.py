"""A figure that a notebook shows as a picture, also where pyplot was never loaded."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A matplotlib Figure; Jupyter has a picture of plain ones only after pyplot has made one."""

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()
