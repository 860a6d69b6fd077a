"""How the plots of a report look. matplotlib draws them as SVG without colours or fonts of its own: each colour is a
name of the page's style sheet (`measured` is its `--measured`), so that one plot is right in light, dark and print.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # it takes a second to import, and only a report needs it
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 640, 360  # points, each a unit of the SVG
LEFT, RIGHT, TOP, BOTTOM = 78, 18, 16, 46
TEXT = 12.5  # the size that the page gives, for where a text is placed
COLOURS = (
    *("ink", "soft", "line", "grid", "card", "measured", "end", "reference", "baseline", "roof", "p95", "bad"),
    *("memory", "compute", "communication", "rest"),
)
DASHES = {"reference": (0, (1, 3)), "baseline": (0, (1, 3)), "p95": (0, (3, 2)), "roof": "--", "communication": "--"}
WIDTHS = {"measured": 2.8, "reference": 2.0, "roof": 2.0, "communication": 2.0, "baseline": 2.0}

Side = Literal["x", "y"]
Points = Sequence[tuple[float, float]]


def colour(name: str) -> str:
    """It stands for the page's own until `svg` writes that."""
    return f"#fe01{COLOURS.index(name):02x}"


def number(value: float) -> str:
    """Three digits that matter: 9.87, 98.7, 987, 9,870."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def axes(x_label: str, y_label: str) -> Axes:
    """Empty, with a line below and a grid of horizontal ones."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of a cache of fonts, which nothing here uses
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72).add_axes(
        (LEFT / WIDTH, BOTTOM / HEIGHT, 1 - (LEFT + RIGHT) / WIDTH, 1 - (TOP + BOTTOM) / HEIGHT)
    )
    soft: dict[str, Any] = {"color": colour("soft"), "fontsize": TEXT}
    made.set_xlabel(x_label, **soft)
    made.set_ylabel(y_label, **soft)
    made.xaxis.set_label_coords(0.5, -36 / (HEIGHT - TOP - BOTTOM), transform=made.transAxes)
    made.yaxis.set_label_coords(-60 / (WIDTH - LEFT - RIGHT), 0.5)
    made.spines[["left", "right", "top"]].set_visible(False)
    made.spines["bottom"].set_color(colour("line"))
    made.tick_params(length=0, pad=8, labelcolor=colour("soft"), labelsize=TEXT)
    made.grid(axis="y", color=colour("grid"), linewidth=1)
    made.set_axisbelow(True)
    return made


def linear(chart: Axes, side: Side, begin: float, end: float) -> None:
    """In round steps, at most eight."""
    from matplotlib.ticker import MaxNLocator

    _ticks(chart, side, MaxNLocator(8, steps=[1, 2, 5, 10]), begin, end)


def logarithmic(chart: Axes, side: Side, values: Sequence[float], *, ticks: Sequence[float] = ()) -> None:
    """With air at both ends, and a tick at each of `ticks`, or at 1, 2, 5 in each power of ten."""
    from matplotlib.ticker import FixedLocator, LogLocator

    chart.set(**{f"{side}scale": "log"})
    locator = FixedLocator(sorted(set(ticks))) if ticks else LogLocator(subs=(1, 2, 5), numticks=99)
    _ticks(chart, side, locator, min(values) / 1.28, max(values) * 1.28)
    chart.minorticks_off()


def _ticks(chart: Axes, side: Side, locator: Any, begin: float, end: float) -> None:
    axis = chart.xaxis if side == "x" else chart.yaxis
    axis.set_major_locator(locator)
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    chart.set(**{f"{side}lim": (begin, end)})


def line(chart: Axes, points: Points, name: str, *, marks: bool = False, values: bool = False) -> None:
    """A series in its colour. `marks`: with a dot at each point; `values`: with its number above."""
    style: dict[str, Any] = {"color": colour(name), "ls": DASHES.get(name, "-"), "lw": WIDTHS.get(name, 1.6)}
    if marks or values:
        style |= {"marker": "o", "markersize": 9, "markeredgewidth": 1.5, "markeredgecolor": colour("card")}
    if marks and name == "reference":  # a ring around what is compared with it
        style |= {"markersize": 16, "markerfacecolor": "none", "markeredgecolor": colour(name)}
    chart.plot(*zip(*points, strict=True), gid=f"line {name}", clip_on=False, **style)
    for x, y in points if values else ():
        value(chart, x, y, number(y))


def band(chart: Axes, points: Sequence[tuple[float, float, float]], name: str) -> None:
    """The area between the second and the third over the first."""
    over, low, high = zip(*points, strict=True)
    chart.fill_between(over, low, high, color=colour(name), alpha=0.14, linewidth=0)


def strokes(
    chart: Axes, y: Sequence[float], left: Sequence[float], right: Sequence[float], name: str, part: float
) -> None:
    """Level ones, each as thick as this part of the chart's height."""
    chart.hlines(y, left, right, colour(name), linewidth=part * (HEIGHT - TOP - BOTTOM), alpha=0.8)


def value(chart: Axes, x: float, y: float, text: str, *, above: float = 8.0) -> None:
    """Above a point of the data."""
    chart.annotate(
        text, (x, y), (0, above), textcoords="offset points", ha="center", color=colour("ink"), gid="value", size=TEXT
    )


def invalid(chart: Axes, points: Points) -> None:
    """INVALID points: a cross of their own colour, joined to nothing, and the word."""
    style: dict[str, Any] = {"marker": "x", "markersize": 10, "markeredgewidth": 2.4, "ls": ""}
    chart.plot(*zip(*points, strict=True), color=colour("bad"), gid="cross", **style)
    for x, y in points:
        chart.annotate("INVALID", (x, y), (0, 9), textcoords="offset points", ha="center", color=colour("bad"))


def shade(chart: Axes, window: Sequence[float], text: str) -> None:
    """A span of the x axis, with a word at its foot."""
    chart.axvspan(window[0], window[1], color=colour("measured"), alpha=0.09, linewidth=0)
    chart.annotate(text, (window[0], 0), (5, 6), chart.get_xaxis_transform(), "offset points", color=colour("soft"))


def svg(chart: Axes, title: str) -> str:
    """For inside a page. `title` is for screen readers; the same chart gives the same text."""
    from matplotlib import rc_context

    written = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        chart.get_figure(root=True).savefig(written, format="svg", transparent=True, metadata=nothing)  # type: ignore[union-attr]
    body = written.getvalue().partition("</style>\n </defs>")[2]
    body = re.sub(r"font-size: [^;]*; font-family: [^;]*; | transform=\"rotate\(-0 [^\"]*\"", "", body)
    body = re.sub(r' id="(?:[\w.]+_\d+)"', "", body)  # not needed, and the same in every chart
    body = re.sub(r' id="((?![mp][0-9a-f]{10}")[^"]+)"', r' class="\1"', body)  # ours
    body = re.sub(r"(\.\d\d)\d+", r"\1", re.sub(r"\s*\n\s*", " ", body))
    body = re.sub(r"#fe01([0-9a-f]{2})", lambda found: f"var(--{COLOURS[int(found[1], 16)]})", body)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}'
