"""What is known of an experiment so far, in one file that is replaced after each step: a broken one goes on there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

FILE = "tune.json"
FORMAT = 1

Outcome = Literal["measured", "invalid", "garbage", "crash", "refused"]


@dataclass(frozen=True)
class Trial:
    """One profile tried. `run` is the folder of its sweep, beside the record; `why` what went wrong, in a line."""

    profile: str
    outcome: Outcome
    run: str | None = None
    why: str = ""
    verdict: str = ""  # the word of its sweep


@dataclass
class Record:
    """`before` is the release that served, and is brought back; `asked` all that has to be the same to go on."""

    folder: Path
    host: str
    before: int
    baseline: str
    asked: Mapping[str, Any]
    trials: list[Trial] = field(default_factory=list)
    predicted: dict[str, str] = field(default_factory=dict)
    again: str | None = None  # the sweep of the baseline after it was brought back
    done: bool = False

    def trial(self, profile: str) -> Trial | None:
        return next((one for one in self.trials if one.profile == profile), None)

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        told = asdict(self) | {"format": FORMAT}
        del told["folder"]
        new = self.folder / f".{FILE}.new"
        new.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
        new.replace(self.folder / FILE)


def unfinished(out: Path, host: str, asked: Mapping[str, Any]) -> Record | None:
    """The newest experiment of this host that asked the same and was broken off."""
    for path in sorted(out.glob(f"*-{host}-tune/{FILE}"), reverse=True):
        try:
            told = json.loads(path.read_text())
            if told.pop("format", None) != FORMAT or told["done"] or told["asked"] != asked or told["host"] != host:
                continue
            trials = [Trial(**one) for one in told.pop("trials")]
            return Record(path.parent, trials=trials, **told)
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ):  # damaged, or of another version
            continue
    return None
