"""`invoke canary`: the battery on each host, and how its verdict reads."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from runbooks.canary.run import BATTERIES, LIMIT, CanaryResult, PromptResult, run_canary
from runbooks.engine.errors import UsageError
from runbooks.engine.report import Level, Reporter

if TYPE_CHECKING:
    from runbooks.engine.transport import Connection
    from runbooks.session import Session

LEVELS: dict[str, Level] = {"healthy": "good", "degraded": "warning", "nan": "error", "dead": "error"}
WORDS = {
    "healthy": "healthy: it speaks sense",
    "degraded": "degraded: some answers are wrong",
    "nan": "NaN: it computes garbage, whatever /health says",
    "dead": "dead: no answer",
}


def canary_hosts(session: Session, battery: str) -> int:
    """Exit code 0 where every server is healthy, else 1."""
    if battery not in LIMIT:
        raise UsageError(f"there is no battery {battery!r}", details=[BATTERIES])
    server = session.loaded.inventory.server
    key = session.secret(server.api_key)

    def one(conn: Connection) -> CanaryResult:
        return run_canary(
            conn,
            server=server,
            model=session.loaded.model_for(conn.name),
            battery=cast(Any, battery),
            report=session.report,
            api_key=key,
        )

    outcomes = session.each(one)
    failed = session.tell_errors(outcomes)
    results = [(outcome.host, outcome.value) for outcome in outcomes if outcome.value is not None]
    for host, result in results:
        tell(result, host, session.report)
    return int(failed or any(result.exit_code for _, result in results))


def tell(result: CanaryResult, host: str, report: Reporter) -> None:
    """The prompts as a table, then the verdict with its evidence, the likely causes in order, and where to read on."""
    columns = ["prompt", "", "in", "out", "cached", "first", "whole", "answer"]
    report.table("canary", columns, [_row(prompt) for prompt in result.prompts], host=host)
    for finding in result.faults:
        report.note(f"{finding.prompt}: {finding.evidence}", host=host, level=LEVELS[result.verdict])
    for number, cause in enumerate(result.causes, 1):
        report.note(f"likely cause {number}: {cause.name}. {cause.text}", host=host)
        report.note(f"   do: {cause.fix}   ({cause.source})", host=host)
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
