"""A deploy from the first look to its verdict, against a host that remembers: what is touched, and in which order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from runbooks.canary import CanaryResult, Finding
from runbooks.deploy import back, gate
from runbooks.deploy.flow import DeployResult, deploy, need_memory
from runbooks.deploy.releases import Release
from runbooks.deploy.unit import plan
from runbooks.engine.errors import CheckFailed, RunbookError, UsageError
from runbooks.inventory import load
from runbooks.inventory.runtimes import runtime_path
from runbooks.inventory.shape import Profile
from runbooks.sglang.argv import build
from tests.deploy.deploy_fake import FakeHost, silent
from tests.deploy.test_deploy_releases import GOOD

SHIPPED = load(Path(__file__).parents[2] / "inventory.yaml")
OPEN = msgspec.structs.replace(SHIPPED.inventory.server, api_key=None)
LOADED = replace(SHIPPED, inventory=msgspec.structs.replace(SHIPPED.inventory, server=OPEN))
HOST = next(iter(LOADED.inventory.hosts))
SPEC, MODEL = LOADED.runtime_for(HOST), LOADED.model_for(HOST)
FOLDER = runtime_path(SPEC, LOADED.inventory.flash_attn)
NEW = plan(LOADED.inventory, build(LOADED.inventory, "final", model=MODEL, runtime=SPEC), model=MODEL, runtime=FOLDER)
OLD = replace(GOOD, content="0" * 12, profile="baseline")
RUNS = json.dumps({"status": 200, "info": {**NEW.launch.expect}})
STEPS = (
    "tar -xpf",
    "switch 2",
    "switch 1",
    "restart --no-block",
    "put /opt/runbooks/releases/2/release.json",
    "stop sglang",
)


def looks(*releases: Release, current: int | None = 1, state: str = "active", running: str = "", port: str = "") -> str:
    lines = "\n".join(release.dump().replace("\n", "") for release in releases)
    link = f"/opt/runbooks/releases/{current}" if current else ""
    gpus = "\n".join(str(index) for index in range(LOADED.inventory.gpus.count))
    return (
        f"-- rb: current\n{link}\n-- rb: releases\n{lines}\n-- rb: unit\nActiveState={state}\nInvocationID=old\n"
        f"Environment=RUNBOOKS_RELEASE={running}\n-- rb: runtime\n{FOLDER}\n-- rb: model\n9\n-- rb: user\n996\n"
        f"-- rb: unreadable\n-- rb: port\n{port}\n-- rb: gpus\n{gpus}\nrc=0\n-- rb: held\n-- rb: key\n"
    )


def _probe(script: str, stdin: bytes) -> str:
    if not stdin:
        return ""
    question = json.loads(stdin)
    if not isinstance(question, dict):
        return ""  # the argv, for the runtime's own parser
    answers = {"info": RUNS, "live": '{"status": 200, "running": 3, "queued": 1}'}
    return answers.get(question["ask"], '{"status": 200, "text": "4"}')


def _follow(*deaths: int) -> Callable[[str, bytes], str]:
    """The unit after each restart: of these starts (counted from 1) the ones in `deaths` die, the others serve."""

    def follow(script: str, stdin: bytes) -> str:
        number = follow.starts  # type: ignore[attr-defined]
        state, sub = ("failed", "failed") if number in deaths else ("active", "running")
        lines = "error: unrecognized arguments: --x" if number in deaths else "Uvicorn running"
        return (
            f"-- rb: unit\nActiveState={state}\nSubState={sub}\nInvocationID=start{number}\n"
            f"-- rb: journal\n{lines}\n-- cursor: s={number}\n"
        )

    follow.starts = 0  # type: ignore[attr-defined]
    return follow


def fake(look: str, *deaths: int) -> FakeHost:
    follow = _follow(*deaths)

    def restart(script: str, stdin: bytes) -> str:
        follow.starts += 1  # type: ignore[attr-defined]
        return ""

    return FakeHost(
        [
            ("echo '-- rb: current'", look),
            ("restart --no-block", restart),
            ("echo '-- rb: unit'", follow),
            ("python.* -c", _probe),
            ("mkdir .*runbooks.lock", ""),
            ("InvocationID --value", lambda script, stdin: f"start{follow.starts}"),  # type: ignore[attr-defined]
        ],
        name=HOST,
    )


def steps(host: FakeHost) -> list[str]:
    """The changes, in order."""
    shown = []
    for script in host.asked:
        if found := re.match(r"ln -sfn -- /opt/runbooks/releases/(\d+) ", script):
            shown.append(f"switch {found[1]}")
        shown += [step for step in STEPS if not step.startswith("switch") and step in script]
    return shown


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "POLL", 0.0)
    monkeypatch.setattr(gate, "COMES_BACK", 0.0)
    canary_says(monkeypatch, "healthy")


def canary_says(monkeypatch: pytest.MonkeyPatch, verdict: str) -> None:
    finding = Finding("token-zero", "nan", "arithmetic", "24 times '!'")
    result = CanaryResult(verdict, (finding,), 1.0, 10, 100)  # type: ignore[arg-type]
    monkeypatch.setattr(back, "run_canary", lambda *args, **kwargs: result)


def _deploy(host: FakeHost, *, agrees: bool = True, check_only: bool = False) -> tuple[DeployResult, list[str]]:
    asked: list[str] = []

    def consent(question: str) -> bool:
        asked.append(question)
        return agrees

    report, _ = silent()
    result = deploy([host.conn], LOADED, "final", report=report, consent=consent, check_only=check_only)
    return result, asked


def test_a_good_one_is_promoted() -> None:
    host = fake(looks(OLD))
    result, asked = _deploy(host)
    assert (result.verdict, result.release, result.changed) == ("promoted", 2, True)
    assert result.observed["dsa_decode_backend"] == "flashinfer_sparse_mla"
    assert steps(host) == ["tar -xpf", "switch 2", "restart --no-block", "put /opt/runbooks/releases/2/release.json"]
    assert json.loads(host.put_files["/opt/runbooks/releases/2/release.json"])["verdict"] == "promoted"
    assert asked == [
        f"{HOST} serves release 1; it goes down for some minutes, until profile final serves "
        "(requests now: 3 running, 1 waiting). Go on?"
    ]


BACK = ["put /opt/runbooks/releases/2/release.json", "switch 1", "restart --no-block"]


def test_one_that_dies_is_rolled_back_before_the_error_is_told() -> None:
    host = fake(looks(OLD), 1)
    with pytest.raises(RunbookError) as failed:
        _deploy(host)
    assert steps(host) == ["tar -xpf", "switch 2", "restart --no-block", *BACK]
    assert json.loads(host.put_files["/opt/runbooks/releases/2/release.json"])["verdict"] == "failed"
    text = str(failed.value)
    assert "release 2 died after" in text
    assert "unrecognized arguments: --x" in text
    assert "release 1 (profile baseline) serves again" in text
    assert failed.value.exit_code == 1


def test_one_that_answers_nonsense_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    canary_says(monkeypatch, "nan")
    host = fake(looks(OLD))
    with pytest.raises(RunbookError, match="the gate canary says nan") as failed:
        _deploy(host)
    assert steps(host)[-3:] == BACK
    assert failed.value.page == "nan-output"


def test_one_that_runs_other_kernels_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**json.loads(RUNS)["info"], "dsa_decode_backend": "trtllm"}
    monkeypatch.setitem(globals(), "RUNS", json.dumps({"status": 200, "info": wrong}))
    host = fake(looks(OLD))
    with pytest.raises(RunbookError, match="other settings") as failed:
        _deploy(host)
    assert "dsa_decode_backend: flashinfer_sparse_mla was expected, trtllm runs" in str(failed.value)
    assert steps(host)[-3:] == BACK


def test_when_the_old_one_does_not_come_back_either_both_are_told() -> None:
    host = fake(looks(OLD), 1, 2)
    with pytest.raises(RunbookError) as failed:
        _deploy(host)
    assert "and release 1 did not come back either: release 1 died" in str(failed.value)


def test_when_the_old_one_does_not_come_back_the_one_before_it_does() -> None:
    older = replace(OLD, number=1, content="1" * 12)
    host = fake(looks(older, replace(OLD, number=2), current=2), 1, 2)
    with pytest.raises(RunbookError) as failed:
        _deploy(host)
    assert "and release 2 did not come back either: release 2 died" in str(failed.value)
    assert "release 1 (profile baseline) serves again" in str(failed.value)
    assert [step for step in steps(host) if step.startswith("switch")] == ["switch 3", "switch 2", "switch 1"]


def test_when_no_earlier_one_comes_back_the_newest_good_one_is_left_starting() -> None:
    older = replace(OLD, number=1, content="1" * 12)
    host = fake(looks(older, replace(OLD, number=2), current=2), 1, 2, 3)
    with pytest.raises(RunbookError, match="release 2 is left to be started by systemd"):
        _deploy(host)
    assert steps(host)[-2:] == ["switch 2", "restart --no-block"]


def test_what_is_broken_gets_no_time_to_end_and_what_is_good_does() -> None:
    host = fake(looks(OLD), 1)
    with pytest.raises(RunbookError, match="serves again"):
        _deploy(host)
    forth, back_again = [script for script in host.asked if "restart --no-block" in script and "reset-failed" in script]
    assert "--signal=KILL" not in forth
    assert "--signal=KILL" in back_again


def test_a_first_one_that_fails_is_stopped() -> None:
    host = fake(looks(current=None, state="inactive"), 1)
    with pytest.raises(RunbookError, match="release 1 died") as failed:
        _deploy(host)
    assert "the server is stopped" in str(failed.value)
    assert steps(host)[-1] == "stop sglang"


SAME = replace(OLD, content=NEW.content, profile="final")


def test_the_same_one_that_serves_is_left_alone() -> None:
    host = fake(looks(SAME, running=SAME.stamp))
    result, asked = _deploy(host)
    assert (result.verdict, result.changed, asked, steps(host)) == ("unchanged", False, [], [])


def test_the_same_one_that_serves_nonsense_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = iter(["nan", "healthy", "healthy"])

    def canary(*_args: object, **_more: object) -> CanaryResult:
        return CanaryResult(next(verdicts), (), 1.0, 10, 100)  # type: ignore[arg-type]

    monkeypatch.setattr(back, "run_canary", canary)
    host = fake(looks(SAME, running=SAME.stamp))
    result, asked = _deploy(host)
    assert (result.verdict, result.release, len(asked)) == ("promoted", 1, 1)
    assert steps(host) == ["switch 1", "restart --no-block"]


@pytest.mark.parametrize(
    "look", [looks(SAME, state="failed"), looks(SAME, running="1:other")], ids=["down", "another one runs"]
)
def test_the_same_one_that_does_not_serve_is_started_and_not_written_again(look: str) -> None:
    host = fake(look)
    result, _ = _deploy(host)
    assert (result.verdict, result.release) == ("promoted", 1)
    assert steps(host) == ["switch 1", "restart --no-block"]


def test_without_consent_nothing_is_touched() -> None:
    host = fake(looks(OLD))
    with pytest.raises(UsageError, match="nothing was touched"):
        _deploy(host, agrees=False)
    assert steps(host) == []


def test_a_server_that_is_not_ours_is_not_stopped_unasked() -> None:
    host = fake(looks(current=None))
    with pytest.raises(UsageError, match="nothing was touched"):
        _deploy(host, agrees=False)
    assert steps(host) == []


def test_check_shows_the_diff_and_touches_nothing() -> None:
    host = fake(looks(OLD))
    result, asked = _deploy(host, check_only=True)
    assert (result.verdict, result.changed, asked) == ("would-change", True, [])
    assert "+ --dsa-decode-backend" in "\n".join(result.diff)
    assert steps(host) == []


@pytest.mark.parametrize(
    ("broken", "part"),
    [
        ({"port": "4242 python3 -m http.server"}, "port 30000 is taken"),
        ({"gpus": True}, "7 GPUs answer, and the inventory says 8"),
        ({"runtime": True}, "is not built here"),
        ({"model": True}, "the model is not there"),
        ({"missing": True}, r"is not whole  .*\n.*missing, or cut off: model-00002"),
        ({"user": True}, "does not exist"),
        ({"room": True}, r"no room for what a deploy writes.*\n.*/var: 3 MB free, 200 MB needed"),
        ({"inodes": True}, r"no room for what a deploy writes.*\n.*/opt: 12 inodes free, 200 needed"),
    ],
)
def test_what_would_stop_it_is_found_before(broken: dict[str, str | bool], part: str) -> None:
    look = looks(OLD, port=str(broken.get("port", "")))
    cuts = {
        "gpus": ("0\n1\n", "1\n"),
        "runtime": (FOLDER, ""),
        "model": ("model\n9", "model\n0"),
        "missing": ("-- rb: user", "-- rb: missing\nmodel-00002.safetensors\n-- rb: user"),
        "user": ("996\n", ""),
        "room": ("-- rb: key", "-- rb: room\n900000000 0 - /\n3000000 9000 8000 /var\n-- rb: key"),
        "inodes": ("-- rb: key", "-- rb: room\n900000000 0 0 /\n900000000 9000 12 /opt\n-- rb: key"),
    }
    for name in broken.keys() & cuts.keys():
        look = look.replace(*cuts[name])
    host = fake(look)
    with pytest.raises(CheckFailed, match=part):
        _deploy(host)
    assert steps(host) == []


@pytest.mark.parametrize("after", range(1, 40))
def test_cut_off_at_any_moment_the_host_has_one_whole_release(after: int) -> None:
    """The link dies after so many exchanges of a deploy that would have been rolled back."""
    host = fake(looks(OLD), 1)
    host.dead_after = after
    with pytest.raises(RunbookError):
        _deploy(host)
    written, current = {1}, 1
    for step in steps(host):
        if step == "tar -xpf":
            written.add(2)
        elif step.startswith("switch"):
            current = int(step.split()[1])
        assert current in written


def test_what_the_full_canary_finds_after_promotion_brings_the_old_one_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def canary(*_args: object, battery: str, **_more: object) -> CanaryResult:
        asked.append(battery)
        verdict = "healthy" if battery == "gate" else "degraded"
        return CanaryResult(verdict, (), 1.0, 10, 100)  # type: ignore[arg-type]

    monkeypatch.setattr(back, "run_canary", canary)
    host = fake(looks(OLD))
    with pytest.raises(RunbookError, match="the full canary says degraded") as failed:
        _deploy(host)
    assert asked == ["gate", "full", "gate"]
    assert steps(host)[-3:] == BACK
    assert json.loads(host.put_files["/opt/runbooks/releases/2/release.json"])["verdict"] == "failed"
    assert "release 1 (profile baseline) serves again" in str(failed.value)


def test_a_profile_without_room_for_a_cache_is_refused_and_a_tight_one_warned_about() -> None:
    """Before anything is asked of the host."""
    few = msgspec.structs.replace(LOADED.inventory.gpus, count=4)
    inventory = msgspec.structs.replace(LOADED.inventory, gpus=few)
    with pytest.raises(CheckFailed, match="no room for a cache") as refused:
        need_memory(inventory, MODEL, {}, HOST)
    assert "nothing on these cards would" in refused.value.details[-1]
    assert need_memory(inventory, MODEL, {"device": "cpu"}, HOST) == []
    assert need_memory(LOADED.inventory, MODEL, NEW.launch.args, HOST) == []
    (warning,) = need_memory(LOADED.inventory, MODEL, {"mem_fraction_static": 0.7}, HOST)
    assert "a request of 202,752 tokens does not fit: mem_fraction_static: 0.85 would" in warning


def _two(*deaths: int) -> tuple[FakeHost, FakeHost]:
    """Two hosts, of which the second dies at these starts."""
    head, second = fake(looks(OLD)), fake(looks(OLD), *deaths)
    second.name = "second"
    return head, second


def _deploy_two(head: FakeHost, second: FakeHost) -> DeployResult:
    inventory = LOADED.inventory
    two = Profile(why="", extends="final", args={"nnodes": 2})
    hosts = {**inventory.hosts, "second": inventory.hosts[HOST]}
    both = msgspec.structs.replace(inventory, profiles={**inventory.profiles, "two": two}, hosts=hosts)
    loaded = replace(LOADED, inventory=both)
    report, _ = silent()
    return deploy([head.conn, second.conn], loaded, "two", report=report, consent=lambda _question: True)


def test_one_server_on_two_hosts_is_written_started_and_promoted_on_both() -> None:
    head, second = _two()
    assert _deploy_two(head, second).verdict == "promoted"
    good = ["tar -xpf", "switch 2", "restart --no-block", "put /opt/runbooks/releases/2/release.json"]
    assert (steps(head), steps(second)) == (good, good)
    argv = [json.loads(one.archives[0]["argv.json"][1]) for one in (head, second)]
    assert [words[words.index("--node-rank") + 1] for words in argv] == ["0", "1"]
    kept = json.loads(head.archives[0]["release.json"][1])
    assert kept["hosts"] == [HOST, "second"]


def test_a_death_on_the_second_takes_both_back() -> None:
    head, second = _two(1)
    with pytest.raises(RunbookError, match="release 2 died") as failed:
        _deploy_two(head, second)
    assert "release 1 (profile baseline) serves again" in str(failed.value)
    assert (steps(head)[-3:], steps(second)[-3:]) == (BACK, BACK)
