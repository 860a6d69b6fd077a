"""What a report holds, and in which order; colour only beyond the noise. On runs of servers whose truth is known."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench import assess, compare, provenance
from runbooks.bench.report import texts
from runbooks.bench.results import BenchResult
from tests.bench.played import Played, reading

pytestmark = pytest.mark.served


def played(folder: Path, *, slower: float = 1.0, noise: int = 1) -> BenchResult:
    """A sweep of a server that reads weights."""
    server = Played(lambda b: slower * (reading(b) / 0.8 + 3), lambda b: 15.0 + b / 4)
    server.sweep(folder, random.Random(noise))
    run = json.loads((folder / "run.json").read_text())
    run["loadgen"] |= {"started": 0.0, "temperature": 1.0, "top_p": 0.95, "interrupted": False}
    run |= {"command": "played", "reference_source": "", "link": "", "raw_sha256": {}, "tool": provenance.tool()}
    (folder / "run.json").write_text(json.dumps(run))
    links = json.loads((folder / "collectives.json").read_text()) | {"torch": "2.11.0", "nccl": "2.29.2"}
    (folder / "collectives.json").write_text(json.dumps(links))
    return assess(folder)


def in_order(text: str, words: list[str]) -> bool:
    places = [text.find(word) for word in words]
    assert -1 not in places, [word for word, at in zip(words, places, strict=True) if at < 0]
    return places == sorted(places)


def test_both_pages_go_from_the_verdict_to_where_it_comes_from(tmp_path: Path) -> None:
    """Verdict, validity, table, charts, baseline, options, provenance."""
    before = played(tmp_path / "before", slower=1.3)
    told = texts(played(tmp_path / "now", noise=2), before)
    page, text = told["report.html"], told["report.md"]
    parts = [
        "How fast is it?",
        "Can I believe it?",
        "What bounds it?",
        'class="verdict"',
        "Can the numbers be believed",
    ]
    parts += ["Every point</h2>", "Throughput against concurrency</h2>", "Where a decode step goes</h2>"]
    parts += ["A user's speed against", "One all-reduce against", "tok/s over time", "Time to first token</h2>"]
    parts += ["Inter-token latency</h2>", "Watts of a card", "Clock of the", "What the PCIe links"]
    parts += ["Every request of the", "Against before</h2>", "What each option would give"]
    parts += ["Collectives, measured", "Provenance</h2>"]
    assert in_order(page[page.index("<body>") :], parts)
    words = ["# memory:", "| How fast is it?", "| What bounds it?", "| check | value |", "| streams |"]
    words += ["## Against before", "## What each option would give", "## Collectives over", "## Provenance"]
    assert in_order(text, words)
    for found in (page, text):
        assert provenance.tool()["loadgen"] in found
        assert "two batches overlapped" in found


def test_colour_is_there_beyond_the_noise_and_only_there(tmp_path: Path) -> None:
    one, quicker = played(tmp_path / "one", slower=3.0), played(tmp_path / "quicker")
    for now, before, expected in ((quicker, one, (7, 0)), (one, quicker, (0, 7))):
        page = texts(now, before)["report.html"]
        assert (page.count('class="faster"'), page.count('class="slower"')) == expected
    seen = {"no difference": 0, 'class="faster"': 0, 'class="slower"': 0}
    for number in range(2, 6):  # of the same machine: what lies between two sweeps is in neither's own interval
        page = texts(played(tmp_path / str(number), slower=3.0, noise=number), one)["report.html"]
        for word in seen:
            seen[word] += page.count(word)
    assert sum(seen.values()) == 28
    assert seen["no difference"] >= 26  # one in twenty lies outside of an interval of 95 %


def test_what_lies_between_two_passes_is_noise() -> None:
    def point(*rates: float) -> dict[str, Any]:
        mean = sum(rates) / len(rates)
        return {"concurrency": 8, "tok_s": mean, "tok_s_ci": 0.5, "repeats": [{"tok_s": rate} for rate in rates]}

    apart = compare._point(point(100.0, 104.0), point(104.0, 106.0))
    assert apart.noise == pytest.approx(105 / 102 * math.hypot(2 / 102, 1 / 105))
    assert apart.word == "faster"
    assert compare._point(point(100.0, 106.0), point(104.0, 106.0)).word == "cannot tell: the noise is larger"
    assert compare._point(point(100.0), point(101.0)).word == "no difference"  # each 1 % by itself
    assert compare._point(point(100.0), point(103.0)).word == "faster"
