"""What was seen, and what health says about it. One row a story."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from runbooks.engine.artefact import build_zipapp
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.shell import Answer
from runbooks.health.gpus import read_gpus
from runbooks.health.hosts import HealthResult, tell
from runbooks.health.look import PATIENCE, RANK, Part, Seen, look, parse
from runbooks.health.rules import Check, checks, lead
from runbooks.inventory.shape import Gpus
from tests.canary.scripted_server import Scripted
from tests.recorder import Recorder

GPUS = Gpus(count=8, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", memory_mib=97887, arch="12.0")
UNIT = (
    "LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nNRestarts=0\nMainPID=671\n"
    "ActiveEnterTimestamp=Sun 2026-11-29 16:02:42 UTC"
)
DISK = "Filesystem 1-blocks Used Available Capacity Mounted on\n/dev/vda1 1000000000000 400000000000 600000000000 40% /"
MEMORY = "MemTotal: 528000000 kB\nMemAvailable: 400000000 kB"


def gpu(index: int, *, watts: float = 300, use: int = 98, reasons: int = 0, ecc: int = 0, temperature: int = 60) -> str:
    state = f"{temperature}, {watts:.2f}, 600.00, 2370, 2430, {use}, 90000, 97887, 0x{reasons:016X}, {ecc}"
    return f"{index}, {GPUS.name}, {state}"


def vitals(**changes: Any) -> str:
    load = {"running": 0, "queued": 0, "kv_use": 0.01, "generated": 100.0}
    whole = {
        "health": 200,
        "health_failure": "",
        "completion": 200,
        "failure": "",
        "text": "2+2 equals 4.",
        "seconds": 0.4,
    }
    whole |= {"findings": [], "before": load, "after": load}
    for name, value in changes.items():
        whole[name] = {**load, **value} if name in ("before", "after") else value
    return json.dumps(whole)


def seen(**parts: Part | str) -> Seen:
    usual: dict[str, Part | str] = {
        "unit": UNIT,
        "port": "LISTEN 0 2048 127.0.0.1:30000 0.0.0.0:*",
        "gpus": "\n".join(gpu(n, watts=80, use=0) for n in range(8)),
        "kernel": "",
        "journal": "The server is fired up and ready to roll!",
        "disk": DISK,
        "memory": MEMORY,
        "clock": "yes",
        "load": "1.00 1.00 1.00 1/500 4711\n64",
        "vitals": vitals(),
    }
    return Seen({name: part if isinstance(part, Part) else Part(0, part) for name, part in (usual | parts).items()})


def states(given: Seen) -> dict[str, Check]:
    return {check.name: check for check in checks(given, host="glm5-a", gpus=GPUS, port=30000)}


def troubled(given: Seen) -> dict[str, str]:
    return {name: check.state for name, check in states(given).items() if check.state != "ok"}


def test_a_simulated_server_is_shown_as_one() -> None:
    said = states(seen(vitals=vitals(version="0.5.23", standin="lab stand-in for SGLang")))
    assert said["http"].detail.endswith("SGLang 0.5.23; lab stand-in for SGLang")


def test_another_program_on_the_port_is_named() -> None:
    evidence = "this is not an OpenAI-compatible server: /v1/chat/completions gives HTTP 404, 'a web page: nginx'"
    found = [{"kind": "foreign", "grade": "dead", "evidence": evidence}]
    said = states(seen(vitals=vitals(health=404, completion=404, findings=found)))
    assert (said["completion"].state, said["completion"].detail) == ("fail", evidence)
    assert "ss -ltnp" in said["completion"].next


def box(count: int = 8, odd: int | None = None, **state: Any) -> str:
    """So many cards; `state` holds for all of them, or for card number `odd` only."""
    return "\n".join(gpu(n, **(state if odd in (None, n) else {})) for n in range(count))


NONE = {"completion": 0, "failure": "silent", "seconds": 4.0}
STUCK = vitals(**NONE, before={"running": 4}, after={"running": 4, "queued": 2})
BUSY = vitals(**NONE, before={"running": 64}, after={"running": 64, "queued": 9, "generated": 900.0})
STARTING = vitals(health=503, completion=503, after={})
REFUSED = vitals(health=0, health_failure="refused", completion=0, failure="refused", before={}, after={})
NAN = vitals(findings=[{"kind": "token-zero", "grade": "nan", "evidence": "24 times '!'"}])
UNMEASURED = vitals(before={"running": None}, after={"running": None})
ACTIVATING = UNIT.replace("=active", "=activating")
ABSENT = "LoadState=not-found\nActiveState=inactive"
XID = "NVRM: Xid (PCI:0000:41:00): "
NO_COMPLETION = {"completion": "fail", "queue": "fail"}
DOWN = {"port": "fail", "http": "fail", "completion": "fail"}

STORIES: dict[str, tuple[Seen, dict[str, str]]] = {
    "all well": (seen(), {}),
    "serving": (seen(gpus=box(), vitals=vitals(after={"running": 8, "generated": 400.0})), {}),
    "busy, not stuck": (seen(vitals=BUSY, gpus=box()), {"completion": "warn", "queue": "warn"}),
    "stuck": (seen(vitals=STUCK, gpus=box(watts=350)), NO_COMPLETION | {"gpu work": "warn"}),
    "spinning at 140 W": (seen(vitals=STUCK, gpus=box(watts=140, use=100)), NO_COMPLETION | {"gpu work": "fail"}),
    "decoding at 300 W is working": (seen(gpus=box(watts=300, use=100)), {}),
    "NaN behind a healthy /health": (seen(vitals=NAN), {"completion": "fail"}),
    "no metrics": (seen(vitals=UNMEASURED), {"queue": "warn"}),
    "starting": (seen(unit=ACTIVATING, port="", vitals=STARTING), DOWN | {"unit": "warn"}),
    "restarted": (seen(unit=UNIT.replace("NRestarts=0", "NRestarts=3")), {"unit": "warn"}),
    "not deployed": (seen(unit=ABSENT, port="", vitals=REFUSED), DOWN | {"unit": "fail"}),
    "seven cards": (seen(gpus=box(7)), {"gpus": "fail"}),
    "nvidia-smi hangs": (seen(gpus=Part(None, "")), {"gpus": "fail"}),
    "nvidia-smi is not installed": (seen(gpus=Part(127, "nvidia-smi: not found")), {"gpus": "fail"}),
    "mismatch": (seen(gpus=Part(18, "Failed to initialize NVML: Driver/library version mismatch")), {"gpus": "fail"}),
    "a card off the bus": (seen(kernel=XID + "79, pid=1, GPU has fallen off the bus."), {"kernel": "fail"}),
    "a process fault": (seen(kernel=XID + "31, pid=1, Ch 0008, MMU Fault"), {"kernel": "warn"}),
    "thermal slowdown": (seen(gpus=box(odd=3, reasons=0x40)), {"gpu state": "warn"}),
    "power cap is everyday": (seen(gpus=box(reasons=0x4)), {}),
    "memory errors": (seen(gpus=box(odd=5, ecc=2)), {"gpu state": "fail"}),
    "full disk": (seen(disk=DISK.replace("40%", "98%")), {"disk": "fail"}),
    "a dead mount": (seen(disk=Part(None, "")), {"disk": "fail"}),
    "wrong clock": (seen(clock="no"), {"clock": "warn"}),
    "wrong key": (seen(vitals=vitals(completion=401, failure="Unauthorized")), {"completion": "fail"}),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_story(story: str) -> None:
    given, expected = STORIES[story]
    assert troubled(given) == expected


def test_a_failed_unit_names_its_cause_and_page() -> None:
    unit = UNIT.replace("ActiveState=active", "ActiveState=failed").replace("Result=success", "Result=signal")
    check = states(
        seen(unit=unit, journal="RuntimeError: probability tensor contains either `inf`, `nan` or element < 0")
    )["unit"]
    assert (check.state, check.page) == ("fail", "nan-output")
    check = states(seen(unit=unit, kernel="Out of memory: Killed process 1 (sglang::schedul)"))["unit"]
    assert "OOM killer" in check.detail


AGAIN = (
    "LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nResult=signal\nNRestarts=0\nMainPID=0\n"
    "ExecMainCode=2\nExecMainStatus=9\nExecMainExitTimestamp=Mon 2026-11-30 01:30:01 UTC\n"
    "ActiveEnterTimestamp=Mon 2026-11-30 01:28:57 UTC\nStateChangeTimestamp=Mon 2026-11-30 01:30:01 UTC\n"
    "StateChangeTimestampMonotonic=500000000\nRestartUSec=30s\nUptime=512.00"
)


def test_between_a_death_and_the_next_start_the_death_is_told() -> None:
    given = seen(unit=AGAIN, port="", vitals=REFUSED)
    unit = states(given)["unit"]
    assert (unit.state, unit.page) == ("fail", "server-down")
    assert unit.detail == "killed (signal 9) at 01:30:01; systemd starts it again in 18 s"
    exited = AGAIN.replace("ExecMainCode=2", "ExecMainCode=1").replace("MainStatus=9", "MainStatus=1")
    later = states(seen(unit=exited.replace("NRestarts=0", "NRestarts=1").replace("\nUptime=512.00", "")))["unit"]
    assert later.detail.startswith("exit code 1 at 01:30:01; systemd starts it again 30s after that, restarted once")
    killed = seen(unit=AGAIN, kernel="Out of memory: Killed process 1 (sglang::schedul)", port="", vitals=REFUSED)
    assert "OOM killer" in states(killed)["unit"].detail


def leads(given: Seen) -> str:
    first = lead(list(states(given).values()))
    return f"{first.name} {first.page}" if first else ""


@pytest.mark.parametrize(
    ("given", "page"),
    [
        (seen(), ""),
        (seen(unit=AGAIN, port="", vitals=REFUSED), "unit server-down"),
        (seen(unit=AGAIN, port="", vitals=REFUSED, disk=DISK.replace("40%", "99%")), "disk disk-full"),
        (seen(unit=ACTIVATING, port="", vitals=STARTING), "unit start-slow"),
        (seen(unit=UNIT.replace("NRestarts=0", "NRestarts=3"), vitals=NAN), "completion nan-output"),
        (seen(unit=ABSENT, port="", vitals=REFUSED, gpus=box(7)), "unit deploy-failed"),
        (seen(vitals=STUCK, gpus=box(7)), "gpus gpu-lost"),
    ],
)
def test_one_page_leads(given: Seen, page: str) -> None:
    assert leads(given) == page


def test_the_screen_names_one_page() -> None:
    told = Recorder()
    given = seen(unit=AGAIN, port="", vitals=REFUSED)
    tell(HealthResult("glm5-a", tuple(states(given).values()), 1.0), Reporter(told))
    rows = next(event.data["rows"] for event in told.events if event.kind == "table")
    assert [row[0] for row in rows if "invoke runbook" in row[3]] == ["unit"]


def test_a_server_that_does_not_answer_is_not_told_to_give_metrics() -> None:
    nothing = {"running": None}
    queue = states(seen(vitals=vitals(health=0, completion=0, failure="refused", before=nothing, after=nothing)))[
        "queue"
    ]
    assert (queue.state, queue.detail) == ("ok", "not known: the server does not answer")


def test_a_gpu_that_does_not_say_its_power_is_read() -> None:
    line = f"0, {GPUS.name}, 31, [N/A], 600.00, 180, 2430, 0, 0, 97887, 0x0000000000000001, [N/A]"
    (card,) = read_gpus(f"some warning\n{line}\n")
    assert (card.power, card.ecc, card.reasons, card.spins) == (None, None, 1, False)


class Local:
    """`ask` on this machine, as the transport does it: a script whose children read `stdin`."""

    name = "local"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.exchanges = 0

    def ask(self, script: str, *, deadline: float = 30.0, stdin: bytes = b"") -> Answer:
        self.exchanges += 1
        environment = {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", script], input=stdin, capture_output=True, timeout=deadline, env=environment, check=False
        )
        return Answer(done.returncode, done.stdout, done.stderr.decode())


def look_locally(tmp_path: Path, url: str, key: Secret | None = None) -> tuple[Seen, Local]:
    probe = tmp_path / "probe.pyz"
    probe.write_bytes(build_zipapp("runbooks.canary.probe", "cli:main"))
    conn = Local(tmp_path)
    found = look(conn, probe=str(probe), url=url, model_name="glm-5", model_path="/", port=30000, key=key)  # type: ignore[arg-type]
    return found, conn


def fake_smi(tmp_path: Path, body: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_one_exchange_brings_everything(tmp_path: Path) -> None:
    fake_smi(tmp_path, "\n".join(f"echo '{gpu(n)}'" for n in range(8)))
    with Scripted() as server:
        found, conn = look_locally(tmp_path, server.url)
    assert conn.exchanges == 1
    said = states(found)
    assert (said["gpus"].state, said["completion"].state, said["disk"].name) == ("ok", "ok", "disk")
    assert "4" in said["completion"].detail


@pytest.mark.slow
def test_a_hanging_nvidia_smi_costs_only_its_own_answer(tmp_path: Path) -> None:
    fake_smi(tmp_path, "trap '' TERM INT HUP; exec sleep 60")
    began = time.monotonic()
    with Scripted() as server:
        found, _ = look_locally(tmp_path, server.url)
    assert time.monotonic() - began < PATIENCE + 2.5
    said = states(found)
    assert (said["gpus"].state, said["completion"].state) == ("fail", "ok")
    assert "hangs" in said["gpus"].detail


def test_the_key_reaches_the_server_and_no_command_line(tmp_path: Path) -> None:
    fake_smi(tmp_path, f"echo '{gpu(0)}'")
    keys: list[str] = []
    with Scripted(lambda asked: keys.append(asked.key) or "4") as server:  # type: ignore[func-returns-value]
        found, _ = look_locally(tmp_path, server.url, Secret("sk-test-1234"))
    assert keys == ["Bearer sk-test-1234"]
    assert "sk-test-1234" not in json.dumps([part.text for part in found.parts.values()])


def test_parse_tells_hung_from_missing() -> None:
    found = parse("\nmark unit 0\nActiveState=active\n\nmark gpus hung\n\nmark clock 127\nsh: not found\n", "mark")
    assert (found["unit"].rc, found["gpus"].hung, found["clock"].missing) == (0, True, True)


def test_of_a_server_on_several_hosts_only_the_first_is_asked_for_a_completion() -> None:
    found = states(seen(vitals="rank 1\n", port=""))
    assert (found["completion"].state, "port" in found, "http" in found) == ("ok", False, False)
    assert found["completion"].detail == "not asked: rank 1 of a server on several hosts computes, and rank 0 answers"


@pytest.mark.parametrize("words", [["--nnodes", "2", "--node-rank", "1"], ["--port", "1"]])
def test_the_rank_is_read_from_the_release(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "argv.json").write_text(json.dumps(words, indent=0))
    script = f"{RANK.replace('/opt/runbooks/current', str(tmp_path))}; echo rank $rank"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert seen(vitals=said).rank == int("--node-rank" in words)
