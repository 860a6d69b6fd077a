"""A few charts as inline SVG. Colours are classes: the page's style sheet sets them for light, dark and print."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 78, 18, 16, 46

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """A series. `style` is the class of its line and markers; `marks`: with a dot a point; `values`: with numbers."""

    points: Sequence[tuple[float, float]]
    style: str
    marks: bool = True
    values: bool = False


@dataclass(frozen=True)
class Band:
    """The area between two curves over the same x."""

    points: Sequence[tuple[float, float, float]]
    style: str


@dataclass
class Plot:
    """Axes and what stands in them. `x_ticks`, `y_ticks` are (value, text)."""

    x: Scale
    y: Scale
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    x_label: str
    y_label: str
    title: str  # for screen readers
    parts: list[str] = field(default_factory=list)

    def line(self, line: Line) -> None:
        known = [(self.x(x), self.y(y), y) for x, y in line.points]
        if len(known) > 1:
            path = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y, _) in enumerate(known))
            self.parts.append(f'<path class="line {line.style}" d="{path}"/>')
        if line.marks:
            size = 8 if line.style == "reference" else 4  # a ring around what is compared with it
            dot = f'class="dot {line.style}" r="{size}"'
            self.parts += [f'<circle {dot} cx="{x:.1f}" cy="{y:.1f}"/>' for x, y, _ in known]
        if line.values:
            self.parts += [self._value(x, y, number(value)) for x, y, value in known]

    def band(self, band: Band) -> None:
        there = [f"{self.x(x):.1f} {self.y(high):.1f}" for x, _, high in band.points]
        back = [f"{self.x(x):.1f} {self.y(low):.1f}" for x, low, _ in reversed(band.points)]
        if len(there) > 1:
            self.parts.append(f'<path class="band {band.style}" d="M{" L".join(there + back)} Z"/>')

    def crosses(self, points: Sequence[tuple[float, float, str]]) -> None:
        """INVALID points: a cross of their own colour, joined to nothing. The text is shown on hover."""
        for x, y, text in points:
            at, up = self.x(x), self.y(y)
            arms = f"M{at - 5:.1f} {up - 5:.1f}l10 10m0 -10l-10 10"
            self.parts.append(f'<path class="cross" d="{arms}"><title>{escape(text)}</title></path>')

    def shade(self, begin: float, end: float, text: str) -> None:
        left, right, floor = self.x(begin), self.x(end), HEIGHT - BOTTOM
        self.parts += [
            _box("shade", left, TOP, right - left, floor - TOP),
            f'<text class="note" x="{left + 8:.1f}" y="{floor - 8}">{escape(text)}</text>',
        ]

    def text(self, x: float, y: float, text: str) -> None:
        """Above a point of the data."""
        self.parts.append(self._value(self.x(x), self.y(y), text))

    def box(self, style: str, left: float, top: float, width: float, height: float) -> None:
        """In the coordinates of the picture; nothing where it has no width."""
        if width > 0:
            self.parts.append(_box(style, left, top, width, height))

    def _value(self, x: float, y: float, text: str) -> str:
        return f'<text class="value" x="{x:.1f}" y="{y - 12:.1f}" text-anchor="middle">{text}</text>'

    def svg(self) -> str:
        return _frame(self.title, [*_axes(self), *self.parts])


def number(value: float) -> str:
    """Three digits that matter: 9.87, 98.7, 987, 9,870."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def logarithmic(low: float, high: float, begin: float, end: float) -> Scale:
    span = math.log(high / low) or 1.0
    return lambda value: begin + (end - begin) * math.log(max(value, low) / low) / span


def linear(low: float, high: float, begin: float, end: float) -> Scale:
    return lambda value: begin + (end - begin) * (value - low) / ((high - low) or 1.0)


def concurrency_axis(values: Sequence[int]) -> tuple[Scale, list[tuple[float, str]]]:
    """log2 of the streams, with a little air at both ends."""
    low, high = min(values) / 1.25, max(values) * 1.25
    return logarithmic(low, high, LEFT, WIDTH - RIGHT), [(b, str(b)) for b in sorted(set(values))]


def log_axis(values: Sequence[float]) -> tuple[Scale, list[tuple[float, str]]]:
    """Of 1, 2, 5 in each power of ten, so far as the values reach."""
    low, high = min(values) / 1.3, max(values) * 1.35
    ticks = [m * 10.0**p for p in range(-3, 8) for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    return logarithmic(low, high, HEIGHT - BOTTOM, TOP), [(tick, f"{tick:,.10g}") for tick in ticks]


def linear_axis(
    highest: float, begin: float = HEIGHT - BOTTOM, end: float = TOP
) -> tuple[Scale, list[tuple[float, str]]]:
    """From zero, in four to eight round steps; upwards unless told otherwise."""
    step = 10.0 ** math.floor(math.log10(highest or 1.0))
    step = next((step / d for d in (5, 4, 2, 1) if highest * d / step <= 7), step)
    top = step * math.ceil(highest * 1.06 / step)
    ticks = [step * i for i in range(round(top / step) + 1)]
    return linear(0.0, top, begin, end), [(tick, f"{tick:,.10g}") for tick in ticks]


def stacked(bars: Sequence[tuple[str, Sequence[tuple[float, str]]]], x_label: str, y_label: str, title: str) -> str:
    """Bars of parts from below: (name, [(value, class), ...]). The sum stands above each."""
    y, ticks = linear_axis(max(sum(value for value, _ in parts) for _, parts in bars))
    slot = (WIDTH - LEFT - RIGHT) / len(bars)
    frame = Plot(
        lambda v: v,
        y,
        [(LEFT + slot * (i + 0.5), name) for i, (name, _) in enumerate(bars)],
        ticks,
        x_label,
        y_label,
        title,
    )
    out = _axes(frame)
    for place, (_, parts) in enumerate(bars):
        left, width, below = LEFT + slot * (place + 0.19), slot * 0.62, 0.0
        for value, style in parts:
            if value > 0:
                top, bottom = y(below + value), y(below)
                out.append(_box(f"bar {style}", left, top, width, bottom - top))
                below += value
        out.append(frame._value(left + width / 2, y(below) + 6, number(below)))
    return _frame(title, out)


def _box(style: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _axes(plot: Plot) -> list[str]:
    floor = HEIGHT - BOTTOM
    out = []
    for value, text in plot.y_ticks:
        y = plot.y(value)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in plot.x_ticks:
        out.append(f'<text class="tick" x="{plot.x(value):.1f}" y="{floor + 17}" text-anchor="middle">{text}</text>')
    out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text class="label" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(plot.x_label)}</text>')
    out.append(
        f'<text class="label" transform="translate(15 {(TOP + floor) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(plot.y_label)}</text>'
    )
    return out


def _frame(title: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">' + "".join(parts) + "</svg>"
