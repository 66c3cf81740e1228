"""Figures by matplotlib as SVG inside a page: it gives shapes and numbers, CSS gives the looks.

What is drawn carries a CSS class instead of matplotlib's colours and fonts, so that light and dark,
phone and desk are the style sheet's; ids, clip paths and dates go too, so that the same results
give the same bytes. All words stand in the template, which escapes them and knows every alphabet.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

from natural_langevin._internal.extras import new_figure
from natural_langevin.cli.pages.text import short


def new_axes(width: int, height: int, *, left: int, right: int, top: int, bottom: int) -> Any:
    """Axes in a figure of ``width`` times ``height`` pixels, with margins; nothing drawn yet."""
    figure = new_figure(figsize=(width / 72, height / 72), layout=None)
    inner = (width - left - right) / width, (height - top - bottom) / height
    axes = figure.add_axes((left / width, bottom / height, *inner))
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    axes.spines[["left", "right", "top"]].set_visible(False)
    mark([axes.spines["bottom"]], "axis")
    axes.tick_params(which="both", left=False, bottom=False, pad=6)
    return axes


def log_scale(axis: Any) -> None:
    """Ticks at powers of ten; where an axis spans few of them, at multiples of these as well."""
    from matplotlib.ticker import LogLocator, NullLocator

    name = axis.axis_name
    axis.axes.set(**{f"{name}scale": "log"})
    low, high = axis.get_view_interval()
    if not 0 < low < high:  # nothing to show
        low, high = 0.1, 1.0
        axis.axes.set(**{f"{name}lim": (low, high)})
    subs = (1,) if high > 500 * low else (1, 2, 5) if high > 5 * low else range(1, 10)
    axis.set_major_locator(LogLocator(subs=subs, numticks=8))
    axis.set_minor_locator(NullLocator())


def mark(artists: Iterable[Any], css: str, title: str = "") -> None:
    """Give what is drawn a CSS class, and a title that shows where the pointer rests."""
    for artist in artists:
        artist.set_gid(f"{css}|{title}")
        artist.set_clip_on(False)


def inline(axes: Any) -> str:
    """The elements of the figure, to stand inside an ``<svg>`` of the figure's size."""
    from matplotlib import rc_context

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: short(value))
        mark(axis.get_gridlines(), "rule")
    content = io.StringIO()
    with rc_context({"svg.fonttype": "none", "path.simplify": False}):
        axes.figure.savefig(content, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(content.getvalue())
    for element in root.iter():
        _clean(element)
    drawn = [child for child in root if child.tag == "g"]
    return re.sub(r">\s+<", "><", "".join(ElementTree.tostring(g, "unicode") for g in drawn))


def _clean(element: Any) -> None:
    """Class and title in place of id and style; of the style only how text is anchored."""
    element.tag = element.tag.rpartition("}")[2]
    element[:] = [child for child in element if not child.tag.endswith("}defs")]
    css, bar, title = element.attrib.pop("id", "").partition("|")
    anchor = re.search(r"text-anchor: (\w+)", element.attrib.pop("style", ""))
    element.attrib.pop("clip-path", None)
    if bar:
        element.set("class", css)
    if title:
        note = ElementTree.Element("title")
        note.text = title
        element.insert(0, note)
    if anchor:
        element.set("text-anchor", anchor[1])
