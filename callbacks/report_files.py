"""The files of a training report."""

from __future__ import annotations

import base64
import html
import math
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 2em; }}
td, th {{ padding: 0.2em 0.8em; text-align: right; }}
tr:nth-child(even) {{ background: #f0f0f0; }}
</style>
<h1>{title}</h1>
<img alt="a plot of each column of the table" src="data:image/png;base64,{image}">
<table>
<tr>{heads}</tr>
{rows}
</table>
</html>
"""
_COLUMNS = 3
_TIMES = ("compute_s", "wait_s", "wire_s")


class ScalarWriter:
    """Writes numbers for TensorBoard; the package of that name is not needed.

    Args:
        folder: Where.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._writer = tf.summary.create_file_writer(str(folder))
        plugin = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
        self._metadata = tf.compat.v1.SummaryMetadata(plugin_data=plugin)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes the numbers of a step."""
        with self._writer.as_default():
            for name, number in numbers.items():
                tf.summary.write(name, tf.constant(number, tf.float32), step, self._metadata)
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


def panels_of(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Which numbers share a plot: a metric and that of the validation, and the parts of a step's time.

    Example:
        >>> panels_of(["loss", "batch_size", "wait_s", "val_loss", "compute_s"])
        [('loss', ['loss', 'val_loss']), ('batch_size', ['batch_size']), ('seconds of a step', ['wait_s', 'compute_s'])]
    """
    panels: dict[str, list[str]] = {}
    for name in names:
        title = "seconds of a step" if name in _TIMES else name.removeprefix("val_")
        panels.setdefault(title, []).append(name)
    return list(panels.items())


def draw(path: pathlib.Path, title: str, epochs: Sequence[int], columns: Mapping[str, Sequence[float]]) -> None:
    """Draws a plot of each column over the epochs, in one PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = panels_of(list(columns))
    rows = math.ceil(len(panels) / _COLUMNS)
    figure = Figure(figsize=(4 * _COLUMNS, 2.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for place, (panel, names) in enumerate(panels):
        axes = figure.add_subplot(rows, _COLUMNS, place + 1)
        for name in names:
            axes.plot(epochs, columns[name], label=name, marker="." if len(epochs) < 20 else None)
        axes.set(title=panel, xlabel="epoch")
        if len(names) > 1:
            axes.legend()
    figure.savefig(path, dpi=110)


def write_page(path: pathlib.Path, title: str, epochs: Sequence[int], columns: Mapping[str, Sequence[float]]) -> None:
    """Writes one HTML file with the plots of `draw`, beside it, and a table of the numbers."""
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in ["epoch", *columns])
    rows = [
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in [epoch, *(f"{values[row]:.6g}" for values in columns.values())]) + "</tr>"
        for row, epoch in enumerate(epochs)
    ]
    image = base64.b64encode(path.with_suffix(".png").read_bytes()).decode()
    path.write_text(_PAGE.format(title=html.escape(title), image=image, heads=heads, rows="\n".join(rows)), encoding="utf-8")
