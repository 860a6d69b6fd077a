"""The pages as a site: complete, searchable, and nothing in it is fetched from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runbooks import oncall
from runbooks.engine.errors import UsageError
from runbooks.monitor import rules
from runbooks.oncall import site

_FETCHED = re.compile(r"<(?:link|script|img|iframe)\b[^>]*\b(?:href|src)=\"([^\"]+)\"")
_LINK = re.compile(r"href=\"([a-z-]+\.html)(?:#[^\"]*)?\"")


@pytest.mark.served
def test_the_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "site"
    assert site.build(str(out)) == 0
    assert f"{len(oncall.names())} pages" in capsys.readouterr().out
    index = (out / "searchindex.js").read_text()
    for name in oncall.names():
        html = (out / f"{name}.html").read_text()
        assert name in index
        assert all(not address.startswith(("http:", "https:", "//")) for address in _FETCHED.findall(html)), name
        assert all((out / link).exists() for link in _LINK.findall(html)), name
    assert "back: changes something, typed here" in (out / "nan-output.html").read_text()
    alerts = rules.document(8, "https://x/")["groups"][0]["rules"]
    assert all((out / rule["annotations"]["runbook_url"].rpartition("/")[2]).exists() for rule in alerts)
    assert site.build(str(out)) == 0, "over what it wrote itself"


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="something else"):
        site.build(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", oncall.names())
def test_a_page_reads_well_on_a_code_host(name: str) -> None:
    """Tables have a line of dashes and as many cells in each row; fences are closed; no HTML."""
    text = oncall.load(name).text
    assert text.count("```") % 2 == 0
    assert not re.search(r"<(?:div|br|span|table)\b", text)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert sum(len(table.splitlines()) for table in tables) == len(rows)
    for table in tables:
        head, dashes, *below = table.splitlines()
        assert re.fullmatch(r"\|(?:-+\|)+", dashes), table
        assert {row.count("|") - row.count("\\|") for row in (head, *below)} == {dashes.count("|")}, table
