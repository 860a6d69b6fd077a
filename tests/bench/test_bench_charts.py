"""The plots: the page's colours and fonts, the same text each time, no name that two charts share."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from runbooks.bench import charts


def drawn(title: str) -> str:
    chart = charts.axes("streams", "tok/s < all")
    charts.logarithmic(chart, "x", (1, 8, 64), ticks=(1, 8, 64))
    charts.linear(chart, "y", 0, 1100)
    charts.shade(chart, (2, 4), "window")
    charts.band(chart, [(1, 40, 60), (8, 200, 300)], "measured")
    charts.line(chart, [(1, 50.4), (8, 276.9)], "measured", values=True)
    charts.line(chart, [(1, 60), (64, 1000)], "roof")
    charts.line(chart, [], "baseline")
    charts.invalid(chart, [(64, 900)])
    return charts.svg(chart, title)


def test_colours_and_fonts_are_the_pages() -> None:
    text = drawn("one")
    for name in ("measured", "roof", "soft", "line", "grid", "bad", "ink"):
        assert f"var(--{name})" in text
    assert not re.search(r"#[0-9a-f]{6}\b", re.sub(r'href="[^"]*"|url\([^)]*\)', "", text).replace("#000000", ""))
    assert "font-family" not in text
    ElementTree.fromstring(text.replace("xlink:href", "href"))
    assert re.findall(r">(\d+)</text>", text)[:3] == ["1", "8", "64"]
    assert "50.4</text>" in text
    assert text.count("INVALID</text>") == 1


def test_the_same_chart_is_the_same_text_and_two_share_no_name() -> None:
    one, two = drawn("one"), drawn("two")
    assert one == drawn("one")
    names = [set(re.findall(r' id="([^"]+)"', text)) for text in (one, two)]
    assert names[0]
    assert not names[0] & names[1]
    assert set(re.findall(r"#([mp][0-9a-f]{10})", one)) == names[0]
