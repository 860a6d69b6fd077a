"""`--since` on texts that were saved: by the stamps before their lines, counted back from the last of them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from runbooks.diagnose.command import diagnose_file
from runbooks.diagnose.since import recent
from runbooks.diagnose.sources import Texts, from_text
from runbooks.engine.printers import JsonPrinter
from runbooks.engine.report import Reporter

STAMPS = {  # old, new: two hours apart
    "short": ("Nov 29 15:00:00 a sglang[7]: ", "Nov 29 17:00:00 a sglang[7]: "),
    "new year": ("Dec 31 23:30:00 a sglang[7]: ", "Jan  1 01:30:00 a sglang[7]: "),
    "leap day": ("Feb 28 23:30:00 a sglang[7]: ", "Feb 29 01:30:00 a sglang[7]: "),
    "iso": ("2026-11-29T15:00:00+0100 a sglang[7]: ", "2026-11-29T16:00:00+00:00 a sglang[7]: "),
    "precise": ("2026-11-29T15:00:00.123456+00:00 a sglang[7]: ", "2026-11-29T17:00:00.123456+00:00 a sglang[7]: "),
    "container": ("2026-11-29T15:00:00.123456789Z ", "2026-11-29T17:00:00.123456789Z "),
    "compose": ("sglang-1  | 2026-11-29 15:00:00,123 ", "sglang-1  | 2026-11-29 17:00:00,123 "),
    "own": ("[2026-11-29 15:00:00 TP0] ", "[2026-11-29 17:00:00 TP0] "),
    "dmesg": ("[ 4711.120000] ", "[11911.120000] "),
    "dmesg -T": ("[Sun Nov 29 15:00:00 2026] ", "[Sun Nov 29 17:00:00 2026] "),
}


def kept(text: str, span: float = 3600) -> list[str]:
    texts = recent(Texts(journal=text), span)
    assert texts is not None
    return texts.journal.splitlines()


@pytest.mark.parametrize("name", STAMPS)
def test_every_kind_of_stamp(name: str) -> None:
    old, new = STAMPS[name]
    assert kept(f"{old}one\n  goes on\n{new}two\n  goes on") == [f"{new}two", "  goes on"]
    assert len(kept(f"{old}one\n{new}two", 3 * 3600)) == 2


def test_what_stands_before_the_first_stamp_is_kept() -> None:
    assert kept(f"a note\n{STAMPS['iso'][0]}one\n{STAMPS['iso'][1]}two")[0] == "a note"


def test_clocks_are_compared_with_their_own_kind() -> None:
    """Seconds since the boot and a date in one text; the last line of each is recent."""
    text = "\n".join(stamp + "x" for kind in ("short", "dmesg", "own") for stamp in STAMPS[kind])
    assert kept(text) == [STAMPS[kind][1] + "x" for kind in ("short", "dmesg", "own")]


def test_the_journal_and_the_kernel_are_counted_back_from_one_end() -> None:
    text = "Nov 29 15:00:00 a kernel: NVRM: Xid (PCI:0000:41:00): 79\nNov 29 17:00:00 a sglang[7]: quiet"
    texts = recent(from_text(text), 3600)
    assert texts is not None
    assert (texts.kernel, texts.journal) == ("", "Nov 29 17:00:00 a sglang[7]: quiet")


def test_what_only_looks_like_a_stamp_is_none() -> None:
    assert recent(Texts(journal="2026-13-45 99:99:99 x\nFoo 12 10:00:00 y"), 3600) is None


def said(file: Path, text: str, since: str) -> list[dict[str, object]]:
    file.write_text(text)
    out = io.StringIO()
    diagnose_file(str(file), Reporter(JsonPrinter(out)), since=since)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_old_failure_is_not_told(tmp_path: Path) -> None:
    text = (
        "Nov 29 15:00:00 a sglang[7]: torch.OutOfMemoryError: CUDA out of memory.\nNov 29 17:00:00 a sglang[7]: fine\n"
    )
    (now,) = said(tmp_path / "log", text, "1h")
    (all_of_it,) = said(tmp_path / "log", text, "")
    assert (now["level"], all_of_it["level"]) == ("good", "error")


def test_a_text_without_time_is_read_whole_and_that_is_said(tmp_path: Path) -> None:
    note, result = said(tmp_path / "log", "torch.OutOfMemoryError: CUDA out of memory.\n", "1h")
    assert "tell no time" in str(note["text"])
    assert result["level"] == "error"
