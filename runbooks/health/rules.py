"""From what was seen to checks: pure, one function a subject. Each says what it saw, and what to type next when it is
not right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runbooks.diagnose import classify
from runbooks.health.gpus import gpu_checks
from runbooks.health.look import Seen
from runbooks.inventory.shape import Gpus

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    name: str
    state: State
    detail: str
    next: str = ""
    page: str = ""


def checks(seen: Seen, *, host: str, gpus: Gpus, port: int) -> list[Check]:
    """All checks, in the order in which a person asks."""
    found = [*_unit(seen, host)]
    if seen.rank:
        said = f"not asked: rank {seen.rank} of a server on several hosts computes, and rank 0 answers"
        found.append(Check("completion", "ok", said))
    else:
        found += [_port(seen, port), *_server(seen, host)]
    working = _working(seen.vitals)
    found += [Check(*entry) for entry in gpu_checks(seen["gpus"], seen["kernel"], gpus, host, working=working)]
    found += [*_disk(seen), _memory(seen), _clock(seen), _load(seen)]
    return found


def _unit(seen: Seen, host: str) -> Iterator[Check]:
    part = seen["unit"]
    if part.hung or part.missing:
        yield Check(
            "unit", "fail", "systemd does not answer" if part.hung else "no systemd on this host", page="server-down"
        )
        return
    unit = dict(line.split("=", 1) for line in part.text.splitlines() if "=" in line)
    state, sub = unit.get("ActiveState", "?"), unit.get("SubState", "?")
    since = unit.get("ActiveEnterTimestamp") or unit.get("StateChangeTimestamp") or "?"
    restarts = int(unit.get("NRestarts") or 0)
    again = f", restarted {_times(restarts)}: find out why" if restarts else ""
    if unit.get("LoadState") == "not-found":
        yield Check(
            "unit",
            "fail",
            "sglang.service is not installed",
            f"invoke deploy --profile final --hosts {host}",
            "deploy-failed",
        )
    elif state == "active":
        yield Check(
            "unit",
            "warn" if restarts else "ok",
            f"{sub} since {since}, PID {unit.get('MainPID')}{again}",
            *_why(seen, unit, restarts),
        )
    elif sub.startswith("auto-restart"):
        cause = classify(seen["journal"].text, seen["kernel"].text, {**unit, "ActiveState": "failed"})
        known = f": {cause.text}" if cause.certain else ""
        said = f"{_death(unit)}{known}; {_next_start(unit)}{again}"
        yield Check("unit", "fail", said, cause.next if cause.certain else "journalctl -u sglang -e", cause.page)
    elif state == "activating":
        again = f" (restart {restarts})" if restarts else ""
        yield Check(
            "unit",
            "fail" if restarts else "warn",
            f"{sub} since {since}{again}",
            *_why(seen, unit, restarts, page="start-slow"),
        )
    else:
        cause = classify(seen["journal"].text, seen["kernel"].text, unit)
        yield Check("unit", "fail", f"{state}/{sub} since {since}: {cause.text}", cause.next, cause.page)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _death(unit: Mapping[str, str]) -> str:
    """How the last process ended, and when: `killed (signal 9) at 01:30:01`."""
    code, status = unit.get("ExecMainCode", ""), unit.get("ExecMainStatus", "?")
    how = {"1": f"exit code {status}", "2": f"killed (signal {status})", "3": f"dumped core (signal {status})"}
    said = how.get(code) or f"ended ({unit.get('Result') or 'systemd does not say how'})"
    when = re.search(r"\d\d:\d\d:\d\d", unit.get("ExecMainExitTimestamp") or unit.get("StateChangeTimestamp") or "")
    return f"{said} at {when[0]}" if when else said


_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def _next_start(unit: Mapping[str, str]) -> str:
    """How long systemd still waits, by the clock of the host that counts from its boot."""
    pause = unit.get("RestartUSecNext") or unit.get("RestartUSec") or ""
    whole = sum(float(n) * _SECONDS[size] for n, size in re.findall(r"([\d.]+)(ms|s|min|h)\b", pause))
    try:
        left = whole - (float(unit["Uptime"]) - int(unit["StateChangeTimestampMonotonic"]) / 1e6)
    except (KeyError, ValueError):
        left = -1.0
    if 0 <= left <= whole:
        return f"systemd starts it again in {left:.0f} s"
    return f"systemd starts it again {pause} after that" if pause else "systemd starts it again"


def lead(found: Sequence[Check]) -> Check | None:
    """The one whose page is to be opened first: a server that is not up explains what is below it, unless a card, the
    kernel or a disk explains that; else what failed comes before what is only to be looked at."""
    wrong = [check for check in found if check.state != "ok" and check.page]
    down = any(check.name == "port" and check.state == "fail" for check in found)

    def order(check: Check) -> int:
        if check.name == "unit" and (check.state == "fail" or down) and check.page != "server-down":
            return 0
        if check.state == "fail":
            return 1 if check.name in ("gpus", "gpu state", "kernel", "disk") else 2
        return 3

    return min(wrong, key=order, default=None)


def _why(seen: Seen, unit: Mapping[str, str], restarts: int, page: str = "") -> tuple[str, str]:
    """The next command and the page of what made it restart."""
    if not restarts:
        return "", page
    cause = classify(seen["journal"].text, seen["kernel"].text, unit)
    return (cause.next, cause.page) if cause.certain else ("journalctl -u sglang -e", "server-down")


def _port(seen: Seen, port: int) -> Check:
    part = seen["port"]
    if part.missing or part.hung:
        return Check("port", "warn", "ss is not installed: cannot tell who listens")
    if part.text.strip():
        return Check("port", "ok", f"something listens on {port}")
    return Check("port", "fail", f"nothing listens on {port}", "journalctl -u sglang -e", "server-down")


def _server(seen: Seen, host: str) -> Iterator[Check]:
    vitals = seen.vitals
    if vitals is None:
        yield Check(
            "completion",
            "fail",
            "the HTTP questions could not be asked: " + (seen["vitals"].text[-120:] or "no answer"),
        )
        return
    status = vitals["health"]
    label = f"; {vitals['standin']}" if vitals.get("standin") else ""
    which = f", SGLang {vitals['version']}{label}" if vitals.get("version") else ""
    if status != 200 and vitals["completion"] == 200:
        yield Check("http", "ok", f"/health says {status or 'nothing yet'}, and a completion works{which}")
    elif status == 503:
        yield Check("http", "fail", "/health says 503: starting, stopping, or no token for 20 s", "", "start-slow")
    elif status != 200:
        yield Check("http", "fail", f"/health: {_heard(vitals['health_failure']) or status}", "", "server-down")
    else:
        yield Check("http", "ok", f"/health says 200 (a NaN server says so, too){which}")
    yield _completion(vitals, host)
    yield _queue(vitals)


def _completion(vitals: Mapping[str, Any], host: str) -> Check:
    again = f"invoke canary --hosts {host}"
    nan = [finding for finding in vitals["findings"] if finding["grade"] == "nan"]
    wrong = [finding for finding in vitals["findings"] if finding["grade"] == "degraded"]
    other = [finding for finding in vitals["findings"] if finding["kind"] in ("foreign", "bad-gateway")]
    if other:
        return Check("completion", "fail", other[0]["evidence"], f"ssh {host} ss -ltnp", "server-down")
    if nan:
        return Check("completion", "fail", nan[0]["evidence"], again, "nan-output")
    if vitals["completion"] == 200:
        said = f"{vitals['text'].strip()!r} in {vitals['seconds']:.2f} s"
        if wrong:
            return Check("completion", "fail", f"{wrong[0]['evidence']}", again, "canary-degraded")
        return Check("completion", "ok", said)
    if vitals["completion"] in (401, 403):
        return Check("completion", "fail", "the server refuses the API key", "", "server-down")
    busy, _ = _traffic(vitals)
    if busy:
        return Check(
            "completion",
            "warn",
            f"none within {vitals['seconds']:.0f} s, but tokens flow: busy, not stuck",
            "",
            "slow-throughput",
        )
    return Check(
        "completion", "fail", f"none: {_heard(vitals['failure']) or vitals['completion']}", again, "server-down"
    )


_HEARD = {
    "silent": "no byte within 4 s",
    "slow": "not done within 4 s",
    "refused": "nothing listens",
    "dropped": "the connection was closed without an answer",
}


def _heard(failure: str) -> str:
    return _HEARD.get(failure, failure)


def _traffic(vitals: Mapping[str, Any]) -> tuple[bool, bool]:
    """(tokens were generated while we looked, requests are there)."""
    before, after = vitals.get("before") or {}, vitals.get("after") or {}
    moved = (after.get("generated") or 0) > (before.get("generated") or 0)
    return moved, bool((after.get("running") or 0) + (after.get("queued") or 0))


def _working(vitals: Mapping[str, Any] | None) -> bool | None:
    """True: tokens flow. False: requests are there, and none flow. None: idle, or nobody knows."""
    if vitals is None:
        return None
    moved, there = _traffic(vitals)
    if moved or vitals["completion"] == 200:
        return True if there else None
    return False if there else None


def _queue(vitals: Mapping[str, Any]) -> Check:
    after = vitals.get("after") or {}
    if after.get("running") is None and vitals["health"] == 0:
        return Check("queue", "ok", "not known: the server does not answer")
    if after.get("running") is None:
        return Check(
            "queue", "warn", "no metrics (SGLang gives them with enable_metrics): busy cannot be told from stuck"
        )
    moved, there = _traffic(vitals)
    kv = after.get("kv_use")
    said = f"{after['running']} running, {after.get('queued') or 0} waiting" + (
        f", KV cache {kv:.0%} full" if kv is not None else ""
    )
    if not moved and there and vitals["completion"] != 200:
        return Check("queue", "fail", f"{said}, and no token in {vitals['seconds']:.0f} s: stuck", "", "server-down")
    if after.get("queued"):
        return Check("queue", "warn", f"{said}: busy, tokens flow", "", "slow-throughput")
    return Check("queue", "ok", said)


def _disk(seen: Seen) -> Iterator[Check]:
    part = seen["disk"]
    if part.hung:
        yield Check("disk", "fail", "df hangs: a mount is dead", "", "disk-full")
        return
    full: list[str] = []
    worst, seen_mounts = 0, set()
    for line in part.text.splitlines():
        match = re.match(r"(\S+)\s+(\d+)\s+\d+\s+(\d+)\s+(\d+)%\s+(\S+)$", line)
        if match and match[5] not in seen_mounts:
            seen_mounts.add(match[5])
            worst = max(worst, int(match[4]))
            if int(match[4]) >= 90:
                full.append(f"{match[5]} {match[4]} % full, {int(match[3]) / 1e9:.1f} GB left")
    if not seen_mounts:
        yield Check("disk", "warn", "df says nothing")
    elif full:
        yield Check("disk", "fail" if worst >= 97 else "warn", "; ".join(full), "", "disk-full")
    else:
        yield Check("disk", "ok", f"fullest {worst} %")


def _memory(seen: Seen) -> Check:
    fields = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", seen["memory"].text, re.MULTILINE)}
    total, available = fields.get("MemTotal", 0), fields.get("MemAvailable", 0)
    if not total:
        return Check("memory", "warn", "unknown")
    said = f"{available / 2**20:.1f} of {total / 2**20:.0f} GiB available"
    return Check("memory", "warn" if available < 0.05 * total else "ok", said)


def _clock(seen: Seen) -> Check:
    part = seen["clock"]
    if part.hung or part.missing or part.rc:
        return Check("clock", "ok", "cannot tell whether it is synchronised (no timedatectl)")
    if part.text.strip() == "yes":
        return Check("clock", "ok", "synchronised")
    return Check(
        "clock", "warn", "not synchronised: the times in logs cannot be trusted", "systemctl status systemd-timesyncd"
    )


def _load(seen: Seen) -> Check:
    words = seen["load"].text.split()
    if len(words) < 6:
        return Check("load", "ok", "unknown")
    load, cores = float(words[0]), int(words[-1])
    return Check("load", "warn" if load > 2 * cores else "ok", f"{load:.1f} on {cores} cores")
