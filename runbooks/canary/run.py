"""Pushes the probe, runs it on the host, follows it, and says what the verdict means for this server."""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from runbooks import paths
from runbooks.canary.causes import Cause, rank
from runbooks.engine.artefact import push_zipapp
from runbooks.engine.errors import NotWritten, RunbookError
from runbooks.engine.jobs import full_disk, run_job
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.inventory.beside import beside
from runbooks.inventory.shape import Model, Server

if TYPE_CHECKING:
    from runbooks.engine.transport import Connection

Verdict = Literal["healthy", "degraded", "nan", "dead"]
EXIT_CODES: dict[str, int] = {"healthy": 0, "degraded": 1, "nan": 1, "dead": 1}
PAGES: dict[str, str] = {"degraded": "canary-degraded", "nan": "nan-output", "dead": "server-down"}

Battery = Literal["quick", "gate", "full"]

LIMIT = {"quick": 180.0, "gate": 180.0, "full": 1200.0}
"""Seconds after which the job is ended from outside. The probe keeps its own, shorter budget (90 s and 900 s on an
idle server)."""

BATTERIES = "quick (under 90 s), gate (quick, with 64 streams at once, as after a deploy) or full (minutes)"

SHOWN = {
    "version": "SGLang",
    "kv_cache_dtype": "KV cache",
    "attention_backend": "attention",
    "prefill_backend": "prefill",
    "decode_backend": "decode",
    "quantization": "weights",
    "speculative_algorithm": "speculation",
}

ANSWERS = f"{paths.CURRENT}/answers.json"
"""What the release that serves said when it was deployed: its gate is its first canary, and writes them."""

KNOWS_FROM = 1e9
"""Active parameters from which a model is expected to know that Paris is in France. Tiny test models only repeat what
they were trained on."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (or, graded `note`, worth knowing) about one reply."""

    kind: str
    grade: str  # nan, dead, degraded or note
    prompt: str
    evidence: str


@dataclass(frozen=True)
class PromptResult:
    """One prompt of the battery. Seconds; `ttft` is the time to the first byte of the answer."""

    name: str
    ok: bool
    seconds: float
    ttft: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    excerpt: str


@dataclass(frozen=True)
class CanaryResult:
    verdict: Verdict
    findings: tuple[Finding, ...]
    seconds: float
    requests: int
    tokens: int
    prompts: tuple[PromptResult, ...] = ()
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    accepted: bool = False  # later runs are compared with this one's answers

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def page(self) -> str | None:
        return PAGES.get(self.verdict)

    @property
    def about(self) -> str:
        """What runs, in words: the settings that decide which kernels answer."""
        shown = [f"{word} {self.settings[name]}" for name, word in SHOWN.items() if self.settings.get(name) is not None]
        label = [str(self.settings["standin"])] if self.settings.get("standin") else []
        return ", ".join([*label, *shown]) or "a server that says nothing of its settings"

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that made the verdict."""
        return tuple(f for f in self.findings if f.grade != "note")


def run_canary(
    conn: Connection,
    *,
    server: Server,
    model: Model,
    battery: Battery = "quick",
    report: Reporter,
    api_key: Secret | None = None,
    accept: bool = False,
) -> CanaryResult:
    """Ask the battery of the server on this host. `accept`: if it is healthy, its answers are the new ones to compare
    with. Raises RunbookError only where the probe itself could not run, NotWritten where no room was left for it."""
    artefact = push_zipapp(conn, "runbooks.canary.probe", "cli:main")
    reader = _Reader(report, conn.name)
    script, uploads = _script(artefact, server, model, battery, api_key, accept=accept)
    job = run_job(
        conn,
        "canary",
        script,
        limit=LIMIT[battery],
        report=report,
        uploads=uploads,
        on_line=reader.line,
        again=False,
    )
    if reader.verdict is None:
        if full := full_disk(conn):
            raise NotWritten(
                "the canary's log was cut off", host=conn.name, step="canary", details=full, page="disk-full"
            )
        raise RunbookError(
            f"the canary ended with {job.rc} and without a verdict",
            host=conn.name,
            step="canary",
            details=job.tail[-10:],
            next=f"invoke health --hosts {conn.name}",
            page="server-down",
        )
    return reader.result()


def probe_words(artefact: str, server: Server, model: Model, battery: str) -> list[str]:
    """The command line of the probe for this server and model."""
    words = ["python3", artefact, "--url", f"http://{beside(server)}", "--model", model.served_name]
    words += ["--battery", battery, "--unit", paths.UNIT_NAME, "--answers", ANSWERS]
    return words if model.shape.active_params >= KNOWS_FROM else [*words, "--no-knowledge"]


def _script(
    artefact: str, server: Server, model: Model, battery: str, api_key: Secret | None, *, accept: bool = False
) -> tuple[str, dict[str, Secret | bytes]]:
    words = [*probe_words(artefact, server, model, battery), *(["--accept"] if accept else [])]
    lines = [
        f": canary {secrets.token_hex(4)}"
    ]  # each run is a job of its own: an earlier verdict must never be taken for this one
    uploads: dict[str, Secret | bytes] = {}
    if api_key is not None:
        uploads["api-key"] = api_key
        lines.append('RUNBOOKS_API_KEY=$(cat "$UPLOADS/api-key"); export RUNBOOKS_API_KEY')
        words += ["--key-env", "RUNBOOKS_API_KEY"]
    lines.append("exec " + shlex.join(words))  # its exit code is the verdict, and the last line says it in words
    return "\n".join(lines) + "\n", uploads


class _Reader:
    """Turns the probe's JSON lines into live progress and, at the end, into a result."""

    def __init__(self, report: Reporter, host: str) -> None:
        self.report = report
        self.host = host
        self.server: dict[str, Any] = {}
        self.prompts: list[PromptResult] = []
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.verdict: dict[str, Any] | None = None

    def line(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            self.report.output(line, host=self.host)
            return
        if not isinstance(event, dict):
            return
        match event.get("event"):
            case "server":
                self.server = event
            case "note":
                self.notes.append(str(event["text"]))
                self.report.note(str(event["text"]), host=self.host, level="warning")
            case "prompt":
                self._prompt(event)
            case "verdict":
                self.verdict = event

    def _prompt(self, event: dict[str, Any]) -> None:
        self.prompts.append(PromptResult(**{name: event.get(name) for name in PromptResult.__dataclass_fields__}))  # type: ignore[arg-type]
        self.report.progress(
            "canary", event["number"], event["of"], host=self.host, unit="prompts", detail=str(event["name"])
        )

    def result(self) -> CanaryResult:
        assert self.verdict is not None
        findings = tuple(Finding(**finding) for finding in self.verdict["findings"])
        settings = dict(self.server.get("settings") or {})
        return CanaryResult(
            verdict=self.verdict["verdict"],
            findings=findings,
            seconds=self.verdict["seconds"],
            requests=self.verdict["requests"],
            tokens=self.verdict["tokens"],
            prompts=tuple(self.prompts),
            causes=rank(findings, settings),
            notes=tuple(self.notes),
            settings=settings,
            accepted=bool(self.verdict.get("accepted")),
        )
