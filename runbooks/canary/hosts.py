"""`invoke canary`: the battery on each host, and how its verdict reads."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from runbooks.canary.run import BATTERIES, LIMIT, Battery, CanaryResult, PromptResult, run_canary
from runbooks.engine import lock
from runbooks.engine.errors import UsageError, worst
from runbooks.engine.report import Level, Reporter

if TYPE_CHECKING:
    from runbooks.engine.secret import Secret
    from runbooks.engine.transport import Connection
    from runbooks.session import Session

LEVELS: dict[str, Level] = {"healthy": "good", "degraded": "warning", "nan": "error", "dead": "error"}
WORDS = {
    "healthy": "healthy: it speaks sense",
    "degraded": "degraded: it answers, and not as it should",
    "nan": "NaN: it computes garbage, whatever /health says",
    "dead": "dead: no answer",
}


def canary_hosts(session: Session, battery: str, *, watch: str = "", accept: bool = False) -> int:
    """Exit code 0 where every server is healthy, else 1. `watch`: again after that pause, until Ctrl-C. `accept`: the
    answers of a healthy server are the ones that later runs are compared with."""
    if battery not in LIMIT:
        raise UsageError(f"there is no battery {battery!r}", details=[BATTERIES])
    pause = seconds_of(watch, "--watch") if watch else 0
    if pause and accept:
        raise UsageError("--accept is said once, and --watch asks again and again", details=["one of the two"])
    key = session.api_key()

    def once() -> tuple[int, Mapping[str, CanaryResult]]:
        outcomes = session.each(lambda conn: _ask(session, conn, battery, key, accept))
        failed = session.tell_errors(outcomes)
        return failed, {outcome.host: outcome.value for outcome in outcomes if outcome.value is not None}

    if pause:
        return _watch(once, pause, session.report)
    failed, results = once()
    for host, result in results.items():
        tell(result, host, session.report)
        if accept:
            _tell_accepted(result, host, session.report)
    wanted = [result.accepted for result in results.values()] if accept else []
    return worst(failed, int(not all(wanted) or any(result.exit_code for result in results.values())))


def _ask(session: Session, conn: Connection, battery: str, key: Secret | None, accept: bool) -> CanaryResult:
    result = run_canary(
        conn,
        server=session.loaded.inventory.server,
        model=session.loaded.model_for(conn.name),
        battery=cast(Battery, battery),
        report=session.report,
        api_key=key,
        accept=accept,
    )
    if accept and result.accepted:
        conn.ask(lock.audit_script(secrets.token_hex(8), "canary", ("its answers are accepted",)))
    return result


def _watch(once: Callable[[], tuple[int, Mapping[str, CanaryResult]]], pause: int, report: Reporter) -> int:
    """A line a run; the whole story only when a verdict is another one than before. The exit code is the last run's."""
    before: dict[str, str] = {}
    code = 0
    try:
        while True:
            failed, results = once()
            code = worst(failed, int(any(result.exit_code for result in results.values())))
            for host, result in results.items():
                if result.verdict != before.get(host, "healthy"):
                    tell(result, host, report)
                else:
                    tell_verdict(result, host, report)
                before[host] = result.verdict
            time.sleep(pause)
    except KeyboardInterrupt:
        return code


def _tell_accepted(result: CanaryResult, host: str, report: Reporter) -> None:
    if result.accepted:
        report.note("from now on compared with these answers", host=host, level="good")
    else:
        why = "it is not healthy" if result.exit_code else "there is no release here to keep them"
        report.note(f"still compared with the answers of before: {why}", host=host, level="error")


_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600}


def seconds_of(text: str, option: str) -> int:
    """A pause such as 30s, 10m or 1h. Raises UsageError."""
    match = re.fullmatch(r"(\d+)(s|min|m|h)", text)
    if not match or not int(match[1]):
        raise UsageError(f"{option} {text!r} is no length of time", details=["for example 30s, 10m or 1h"])
    return int(match[1]) * _UNITS[match[2]]


def tell(result: CanaryResult, host: str, report: Reporter) -> None:
    """The prompts as a table, then the verdict with its evidence, the likely causes in order, and where to read on."""
    report.note(f"asked: {result.about}", host=host)
    columns = ["prompt", "", "in", "out", "cached", "first", "whole", "answer"]
    report.table("canary", columns, [_row(prompt) for prompt in result.prompts], host=host)
    for finding in result.faults:
        report.note(f"{finding.prompt}: {finding.evidence}", host=host, level=LEVELS[result.verdict])
    for number, cause in enumerate(result.causes, 1):
        report.note(f"likely cause {number}: {cause.name}. {cause.text}", host=host)
        report.note(f"   do: {cause.cure(result.settings)}   ({cause.source})", host=host)
    tell_verdict(result, host, report)


def tell_verdict(result: CanaryResult, host: str, report: Reporter) -> None:
    cost = f"{result.requests} requests, {result.tokens} tokens, {result.seconds:.1f} s"
    page = f"   page: invoke runbook {result.page}" if result.page else ""
    report.emit(
        "result",
        f"{WORDS[result.verdict]}   ({cost}){page}",
        host=host,
        level=LEVELS[result.verdict],
        verdict=result.verdict,
        findings=[asdict(finding) for finding in result.findings],
        causes=[cause.name for cause in result.causes],
        settings=result.settings,
    )


def _row(prompt: PromptResult) -> list[str]:
    return [
        prompt.name,
        "ok" if prompt.ok else "WRONG",
        _shown(prompt.prompt_tokens),
        _shown(prompt.completion_tokens),
        _shown(prompt.cached_tokens),
        "-" if prompt.ttft is None else f"{prompt.ttft:.2f} s",
        f"{prompt.seconds:.2f} s",
        prompt.excerpt[:48],
    ]


def _shown(number: int | None) -> str:
    return "-" if number is None else str(number)
