"""Experiments without a host: what is predicted, what becomes of good, NaN and crash, what is put back, going on."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from runbooks.bench import assess
from runbooks.bench.results import BenchResult
from runbooks.bench.sweep import _failure
from runbooks.deploy import hosts as deploying
from runbooks.engine import lock
from runbooks.engine.errors import CheckFailed, RunbookError, Unreachable, UsageError
from runbooks.engine.report import Reporter
from runbooks.inventory import load
from runbooks.tune import outcome, trials
from runbooks.tune.predict import predict
from runbooks.tune.record import Record, Trial, unfinished
from tests.bench.played import Played, reading
from tests.recorder import Recorder

ROOT = Path(__file__).parents[2]


class Site:
    """Stands where the host would: what each profile does is known."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.serves, self.deployed, self.back = "final", [], []  # type: ignore[var-annotated]
        self.slow = {"final": 1.0, "good": 0.8}
        self.sweeps = 0
        self.said = Recorder()
        self.out = tmp_path
        monkeypatch.setattr(trials, "deploy", self.deploy)
        monkeypatch.setattr(trials, "run_bench", self.bench)
        monkeypatch.setattr(deploying, "rollback_hosts", lambda session, to: self.back.append(to))
        current = SimpleNamespace(number=7, profile="final")
        found = SimpleNamespace(release=lambda number: current, current=7, serves=True)
        monkeypatch.setattr(deploying, "glance", lambda session, conn: found)

    def deploy(self, conns: Any, loaded: Any, profile: str, **_: Any) -> None:
        self.deployed.append(profile)
        if profile == "poison":
            raise RunbookError("the canary says nan", page="nan-output")
        if profile == "broken":
            raise RunbookError("the server died", page="server-down")
        if profile == "away":
            raise Unreachable("no route to host")
        if profile == "taken":
            raise lock.Busy("another run is changing this host")
        self.serves = profile

    def bench(self, conn: Any, loaded: Any, host: str, *, options: Any, report: Any, out: Path) -> BenchResult:
        self.sweeps += 1
        step = self.slow[self.serves if self.sweeps > 1 and not self.back else "final"]
        played = Played(lambda b: step * (reading(b) / 0.5 + 10), lambda b: 20.0)
        return assess(played.sweep(out / f"run-{self.sweeps}", random.Random(self.sweeps)))

    def run(self, *profiles: str, yes: bool = True) -> int:
        loaded = load(ROOT / "inventory.yaml")
        final = loaded.inventory.profiles["final"]
        names = {
            **loaded.inventory.profiles,
            "good": final,
            "poison": final,
            "broken": final,
            "away": final,
            "taken": final,
        }
        whole = loaded.inventory
        server = msgspec.structs.replace(whole.server, api_key=None)
        inventory = SimpleNamespace(profiles=names, bench=whole.bench, gpus=whole.gpus, server=server)
        session: Any = SimpleNamespace(
            loaded=SimpleNamespace(inventory=inventory, model_for=loaded.model_for),
            hosts=["glm5-a"],
            report=Reporter(self.said),
            yes=yes,
            consent=lambda question: yes,
            connect=lambda name: nullcontext(None),
        )
        return trials.tune_host(session, profiles, concurrency=(), window=5.0, out=str(self.out))

    @property
    def record(self) -> dict[str, Any]:
        (path,) = self.out.glob("*-tune/tune.json")
        told: dict[str, Any] = json.loads(path.read_text())
        return told


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    return Site(monkeypatch, tmp_path)


@pytest.mark.served
def test_one_good_one_nan_one_crash(site: Site) -> None:
    assert site.run("good,poison", "broken") == 1
    assert site.deployed == ["good", "poison", "broken"]
    assert site.back == [7]  # the release that served before serves again
    told = {one["profile"]: one["outcome"] for one in site.record["trials"]}
    assert told == {"final": "measured", "good": "measured", "poison": "garbage", "broken": "crash"}
    assert site.record["done"]
    said = "\n".join(str(event) for event in site.said.events)
    assert "best: good, +2" in said
    assert "bound by: final unexplained, good memory" in said
    assert "good: memory: At 64 streams: " in said  # each with its line, as it was measured
    assert "invoke deploy --hosts glm5-a --profile good" in said  # proposed, not kept
    kinds = [event.kind for event in site.said.events]
    assert kinds.index("table") < kinds.index("heading")  # predicted before anything is deployed


def test_what_was_broken_off_goes_on(site: Site) -> None:
    asked = {"profiles": ["poison"], "concurrency": [1, 8, 64], "window": 5.0}
    old = Record(site.out / "2026-01-01-glm5-a-tune", "glm5-a", 7, "final", asked, [Trial("final", "invalid")])
    old.save()
    assert unfinished(site.out, "glm5-a", asked | {"window": 6.0}) is None
    assert site.run("poison") == 1
    assert (site.deployed, site.sweeps) == (["poison"], 0)
    assert unfinished(site.out, "glm5-a", asked) is None


def test_users_that_are_there_are_no_crash_of_the_profile(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {"kind": "busy", "text": "the server has 3 live or queued requests"}

    def refused(*_: Any, **__: Any) -> BenchResult:
        raise _failure(busy, 3, (), "glm5-a")

    monkeypatch.setattr(trials, "run_bench", refused)
    assert site.run("good") == 1
    told = {one["profile"]: (one["outcome"], one["why"]) for one in site.record["trials"]}
    assert told == dict.fromkeys(("final", "good"), ("refused", busy["text"]))
    assert site.back == [7]


@pytest.mark.parametrize(("profile", "error"), [("away", Unreachable), ("taken", lock.Busy)])
def test_a_host_that_is_away_or_another_run_s_is_no_crash_of_the_profile(
    site: Site, profile: str, error: type[RunbookError]
) -> None:
    asked = {"profiles": [profile, "poison"], "concurrency": [1, 8, 64], "window": 5.0}
    Record(site.out / "2026-01-01-glm5-a-tune", "glm5-a", 7, "final", asked, [Trial("final", "invalid")]).save()
    with pytest.raises(error):
        site.run(profile, "poison")
    assert [one["profile"] for one in site.record["trials"]] == ["final"]
    assert not site.record["done"]


def test_nothing_is_touched_without_consent_or_with_a_wrong_name(site: Site) -> None:
    with pytest.raises(CheckFailed, match="no consent"):
        site.run("good", yes=False)
    with pytest.raises(UsageError, match="nonsense"):
        site.run("nonsense")
    with pytest.raises(UsageError, match="2 of these cannot be tried") as caught:
        site.run("good,graph-off", "nope")
    assert [line.partition(";")[0] for line in caught.value.details] == [
        "there is no profile 'graph-off'",
        "there is no profile 'nope'",
    ]
    with pytest.raises(UsageError, match="which are to be tried"):
        site.run()
    assert (site.deployed, site.back) == ([], [])


def test_nobody_is_faster_than_noise(tmp_path: Path) -> None:
    record = Record(tmp_path, "glm5-a", 7, "final", {}, [Trial("final", "measured"), Trial("good", "crash")])
    assert outcome.best(record) is None
    assert outcome.proposal(record).startswith("none is faster than final")


def test_predictions() -> None:
    loaded = load(ROOT / "inventory.yaml")
    same = predict(loaded, "glm5-a", "final", "final", 64)
    assert same.say() == "the same settings: x 1.00"
    told = predict(loaded, "glm5-a", "final", "baseline", 64)
    assert told.changes
    assert told.say() == "not known"  # backends: that is what an experiment is for
