"""The report in a real browser: no error, no request, every chart there, readable on a telephone, dark and in print."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runbooks.bench import EXAMPLE, assess
from runbooks.bench.report import write

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

PAPER = 703  # pixels of A4 between its margins

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]

# Runs in the page before it is read: what went wrong, what was asked of the network, what is too wide.
ASKED = """
<script>
addEventListener('load', () => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const svgs = [...document.querySelectorAll('svg')];
  const empty = svgs.filter(one => one.getBoundingClientRect().width < 250 || one.querySelectorAll('*').length < 8);
  const asked = performance.getEntriesByType('resource').map(one => one.name);
  document.querySelector('.points').scrollIntoView({block: 'center'});
  const box = document.querySelector('.points').getBoundingClientRect();
  const cells = [...document.querySelectorAll('.points th, .points td')].map(one => {
    const at = one.getBoundingClientRect(), x = (at.left + at.right) / 2, y = (at.top + at.bottom) / 2;
    return {inside: at.right <= box.right + 1, free: x > box.right || document.elementFromPoint(x, y) === one};
  });
  const told = {wide, cells: cells.length, outside: cells.filter(one => !one.inside).length,
    covered: cells.filter(one => !one.free).length, charts: svgs.length, empty: empty.length, asked,
    size: Math.min(...svgs.flatMap(svg => [...svg.querySelectorAll('text')].slice(0, 1)
      .map(one => one.getBoundingClientRect().height))),
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    back: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color};
  document.body.setAttribute('data-told', JSON.stringify(told));
  parent.postMessage(JSON.stringify(told), '*');
});
</script>
"""
# A window of Chromium is at least 500 pixels wide, and a telephone is not.
PHONE = """<body><script>
addEventListener('message', event => document.body.setAttribute('data-told', event.data));
</script><iframe src="asked.html" width="375" height="3000"></iframe></body>
"""


def browse(page: Path, *options: str, width: int = 1280) -> str:
    """The page as Chromium made it, and what it said on its console."""
    assert CHROMIUM
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},1600", "--disable-extensions"]
    command += ["--virtual-time-budget=3000", "--disable-background-networking", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write(assess(EXAMPLE), folder)
    text = (folder / "report.html").read_text()
    (folder / "asked.html").write_text(text.replace("</body>", ASKED + "</body>"))
    (folder / "phone.html").write_text(PHONE)
    paper = (folder / "asked.html").read_text().replace("@media print", "@media all")
    (folder / "paper.html").write_text(paper.replace("<main>", f'<main style="width:{PAPER}px">'))
    return folder / "asked.html"


@pytest.mark.parametrize(("name", "width"), [("asked", 1280), ("asked", 500), ("phone", 500)])
def test_nothing_fails_nothing_is_fetched_and_everything_fits(page: Path, name: str, width: int) -> None:
    seen = browse(page.with_name(f"{name}.html"), "--dump-dom", width=width)
    told = re.search(r'data-told="([^"]+)"', seen)
    assert told
    said = told[1].replace("&quot;", '"')
    assert '"wide":0,' in said, said  # the page itself never scrolls sideways
    assert '"asked":[]' in said, said
    assert '"empty":0' in said, said
    assert int(re.search(r'"charts":(\d+)', said)[1]) >= 10  # type: ignore[index]
    assert float(re.search(r'"size":([\d.]+)', said)[1]) >= 8.0, said  # type: ignore[index]  # px: readable


@pytest.mark.parametrize(
    ("name", "width", "whole"),
    [("asked", 1200, True), ("asked", 1000, True), ("asked", 500, False), ("paper", 900, True)],
)
def test_no_cell_of_the_table_is_covered(page: Path, name: str, width: int, whole: bool) -> None:
    """By another, as a column was that stood still while the rest scrolled; on paper nothing scrolls."""
    seen = browse(page.with_name(f"{name}.html"), "--dump-dom", width=width)
    said = re.search(r'data-told="([^"]+)"', seen)[1].replace("&quot;", '"')  # type: ignore[index]
    assert int(re.search(r'"cells":(\d+)', said)[1]) > 8 * 12  # type: ignore[index]
    assert '"covered":0' in said, said
    assert not whole or '"outside":0' in said, said


@pytest.mark.parametrize(
    ("dark", "back", "ink"), [(False, "246, 247, 249", "23, 32, 43"), (True, "15, 20, 27", "230, 235, 241")]
)
def test_it_follows_the_readers_light_or_dark(page: Path, dark: bool, back: str, ink: str) -> None:
    seen = browse(page, "--dump-dom", f"--blink-settings=preferredColorScheme={0 if dark else 1}")
    said = re.search(r'data-told="([^"]+)"', seen)[1].replace("&quot;", '"')  # type: ignore[index]
    assert f'"dark":{str(dark).lower()}' in said, said
    assert f'"back":"rgb({back})","ink":"rgb({ink})"' in said, said


def test_it_prints(page: Path, tmp_path: Path) -> None:
    browse(page, f"--print-to-pdf={tmp_path / 'report.pdf'}")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
