"""A grant of peer-to-peer: noted while it stands, judged by the ladder, forgotten when nobody asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runbooks import paths
from runbooks.bench.collectives import cli
from runbooks.engine.step import Change, Verdict
from runbooks.provision.granted import Peers, is_vetoed

CASES: dict[str, tuple[bool, bool, str, str]] = {  # asked, granted, what the host holds; what is done or said
    "granted just now": (True, True, "", "granted by QEMU -> untested"),
    "not tried yet": (True, True, "untested", "granted, and not proven yet: invoke bench.collectives"),
    "proven": (True, True, "healthy", "granted, and proven"),
    "tried in vain": (True, True, "wrong data", "tried, and not proven: wrong data"),
    "taken back": (True, False, "hang", "tried, and not proven: hang"),
    "waits": (True, False, "", "waits for a power cycle"),
    "off": (False, False, "", "off"),
    "not asked for any more": (False, True, "wrong data", "not asked for any more: forgets 'wrong data'"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_a_grant(name: str) -> None:
    asked, granted, verdict, said = CASES[name]
    step = Peers(asked=asked, granted=granted)

    def plan(holds: str) -> Change | Verdict:
        return step.plan({step.questions()[0]: {"rc": 0, "out": holds}})

    found = plan(verdict)
    assert said in (found.line if isinstance(found, Verdict) else found.diff[0].line)
    assert isinstance(plan("untested" if asked else ""), Verdict), "nothing is left to change after the change"


def test_only_what_was_tried_is_vetoed() -> None:
    assert [word for word in ("", "untested", "healthy", "hang", "inconclusive", "not granted") if is_vetoed(word)] == [
        "hang",
        "inconclusive",
        "not granted",
    ]


def told(word: str, *, cards: int = 0, granted: bool = True, **environment: str) -> dict[str, Any]:
    pairs = [[0, 1], [1, 0]] if granted and cards else []
    return {"ladder": {"word": word}, "cards": ["a card"] * cards, "granted": pairs, "environment": environment}


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (told("healthy", cards=2), "healthy"),
        (told("wrong data", cards=2), "wrong data"),
        (told("healthy", cards=2, granted=False), "not granted"),
        (told("healthy", cards=2, NCCL_P2P_DISABLE="1"), "untested"),
        (told("healthy", cards=2, NCCL_P2P_DISABLE="0"), "healthy"),
        (told("healthy"), "healthy"),
    ],
)
def test_what_the_ladder_says_of_a_grant(result: dict[str, Any], word: str) -> None:
    assert cli.word_of(result) == word


@pytest.mark.parametrize("there", [True, False])
def test_the_ladder_judges_a_grant_and_nothing_else(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inconclusive while it climbs: a ladder that takes the machine down has proven nothing."""
    verdict, seen = tmp_path / "p2p-verdict", list[str]()
    if there:
        verdict.write_text("untested\n")

    def measure(_options: object, _folder: Path) -> dict[str, Any]:
        seen.append(verdict.read_text() if verdict.exists() else "")
        return told("hang", cards=2) | {"errors": []}

    monkeypatch.setattr(cli, "measure", measure)
    monkeypatch.setattr(cli, "held", list)
    with pytest.raises(SystemExit):
        cli.main(["--verdict", str(verdict)])
    assert seen == ["inconclusive\n" if there else ""]
    assert (verdict.read_text() == "hang\n") if there else not verdict.exists()


def test_cards_in_use_leave_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = tmp_path / "p2p-verdict"
    verdict.write_text("healthy\n")
    monkeypatch.setattr(cli, "held", lambda: ["570, python3"])
    with pytest.raises(SystemExit):
        cli.main(["--verdict", str(verdict)])
    assert verdict.read_text() == "healthy\n"
    assert paths.PEERS.endswith("p2p-verdict")
