"""What is kept and what may go; what a failed release leaves; which software a release is."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from runbooks.deploy import evidence, guard, prune, software
from runbooks.deploy.releases import Release
from runbooks.engine.errors import CheckFailed, RunbookError
from runbooks.engine.secret import Secret
from tests.deploy.deploy_fake import FakeHost, silent
from tests.deploy.test_deploy_releases import ONE

GOOD = replace(ONE, verdict="promoted")


def _many(verdicts: str) -> list[Release]:
    """`g` good, `f` failed, `-` not judged: one release a letter, numbered from 1, each with a runtime of its own."""
    words = {"g": "promoted", "f": "failed", "-": None}
    return [
        replace(ONE, number=number, verdict=words[letter], runtime=f"/opt/runbooks/runtimes/{number}")  # type: ignore[arg-type]
        for number, letter in enumerate(verdicts, 1)
    ]


@pytest.mark.parametrize(
    ("verdicts", "serving", "going"),
    [
        ("", (), []),
        ("g" * 10, (10,), []),
        ("g" * 12, (12,), [1, 2]),
        ("g" * 12, (1,), [2]),  # the one that serves is never removed, however old
        ("ggg" + "f" * 12, (3,), [4, 5]),  # nor the last three good ones
        ("fggg" + "f" * 12, (), [1, 5, 6]),
        ("g" * 13, (13, 1), [2, 3]),  # nor the one that the running unit says it is
    ],
)
def test_what_may_go(verdicts: str, serving: tuple[int, ...], going: list[int]) -> None:
    assert [release.number for release in prune.spare(_many(verdicts), serving=serving)] == going


def test_a_runtime_goes_only_when_no_kept_release_and_no_inventory_names_it() -> None:
    releases = _many("g" * 13)
    going = prune.spare(releases, serving=(13,))
    there = [*(release.runtime for release in releases), "/opt/runbooks/runtimes/wanted", "/opt/runbooks/runtimes/old"]
    wanted = ["/opt/runbooks/runtimes/wanted", "/opt/runbooks/runtimes/1"]
    left = prune.spare_runtimes(there, releases, going, wanted=wanted)
    assert left == ["/opt/runbooks/runtimes/2", "/opt/runbooks/runtimes/3", "/opt/runbooks/runtimes/old"]
    shared = [replace(release, runtime="/opt/runbooks/runtimes/one") for release in releases]
    assert prune.spare_runtimes(["/opt/runbooks/runtimes/one"], shared, going, wanted=[]) == []


def test_removal_hides_a_folder_before_its_files_go() -> None:
    host = FakeHost()
    prune.remove(host.conn, [])
    assert host.asked == []
    prune.remove(host.conn, ["/opt/runbooks/releases/3"])
    assert "mv -T -- /opt/runbooks/releases/3 /opt/runbooks/releases/.gone-3 && rm -rf" in host.asked[0]


def test_no_secret_reaches_what_is_saved() -> None:
    report, _ = silent()
    report.hide(Secret("sk-123456789"))
    text = 'HF_TOKEN="hf_abc"\nNCCL_PROTO="LL"\nserver_args: sk-123456789\n"api_key": "x",\nMY_PASSWORD=y\nmax_tokens=8'
    said = evidence.masked(text, report)
    assert "hf_abc" not in said
    assert "sk-123456789" not in said
    assert "MY_PASSWORD=***" in said
    assert 'NCCL_PROTO="LL"' in said


def test_what_is_saved_is_private_and_named_by_time_and_release() -> None:
    def gathered(script: str, stdin: bytes) -> str:
        mark = script.partition("do echo '")[2].partition("'")[0]
        return f"{mark}unit\nActiveState=failed\n{mark}journal\nit died\n"

    host = FakeHost([("mktemp -d /run/rb-diagnosis", gathered)])
    report, _ = silent()
    folder = evidence.save(host.conn, ONE, RunbookError("release 1 died", host="glm5-a"), report)
    assert folder is not None
    assert folder.startswith("/var/lib/runbooks/diagnosis/2")
    assert folder.endswith("-release-1")
    assert "umask 077" in host.asked[-1]


def _software(**packages: str) -> str:
    return json.dumps({"interpreter": "/r/venv/bin/python", "python": "3.11.2", "packages": packages})


@pytest.mark.parametrize(
    ("recorded", "now", "lines"),
    [
        (_software(torch="2.14.1"), _software(torch="2.14.1"), []),
        (_software(torch="2.14.1"), _software(torch="2.15.0"), ["torch: 2.14.1, now 2.15.0"]),
        (_software(a="1"), _software(b="1"), ["a: 1, now not there", "b: not there, now 1"]),
        (_software(), _software().replace("3.11.2", "3.12.1"), ["python: 3.11.2, now 3.12.1"]),
        ("", _software(), []),
    ],
    ids=["same", "upgraded", "swapped", "python", "recorded nothing"],
)
def test_other_software_is_told(recorded: str, now: str, lines: list[str]) -> None:
    assert software.compare(recorded, now) == lines


def test_a_rollback_to_changed_software_is_refused_before_anything_stops() -> None:
    host = FakeHost([("cat .*software.json", _software(torch="1")), ("python -I", _software(torch="2"))])
    with pytest.raises(CheckFailed, match="not what it was: 1 differences") as failed:
        software.unchanged(host.conn, GOOD)
    assert "torch: 1, now 2" in str(failed.value)
    assert len(host.asked) == 2


@pytest.mark.parametrize("said", [f"{GOOD.runtime}/venv/bin/python\n0\n", "sglang::server\n41\n", "", "0\n"])
def test_the_right_interpreter_is_taken_under_a_title_too(said: str) -> None:
    software.runs_from(FakeHost([("cmdline", said)]).conn, GOOD)


@pytest.mark.parametrize("said", ["/usr/bin/python3\n9\n", "sglang::server\n0\n"])
def test_another_interpreter_is_told(said: str) -> None:
    with pytest.raises(RunbookError, match="not the release's interpreter"):
        software.runs_from(FakeHost([("cmdline", said)]).conn, GOOD)


def test_a_release_that_nobody_confirms_takes_itself_back() -> None:
    new, old = replace(ONE, number=7), replace(GOOD, number=6)
    host = FakeHost()
    guard.on(host.conn, new, old, budget=1800)
    guard.off(host.conn)
    assert "OnActiveSec=2320" in host.asked[0]
    assert "stop runbooks-fallback.timer runbooks-fallback.service" in host.asked[1]
    script = guard.script(new, old)
    lock, first, second, *rest = script.splitlines()
    assert lock.startswith("exec 9>>/run/runbooks-switching; flock -n 9 || exit 0")
    assert first == 'if [ "$(readlink /opt/runbooks/current)" = /opt/runbooks/releases/7 ] &&'
    assert second == "  grep -q '\"verdict\": null' /opt/runbooks/releases/7/release.json; then"
    assert "ln -sfn -- /opt/runbooks/releases/6" in rest[0]
    assert subprocess.run(["sh", "-n", "-c", script], check=False).returncode == 0
