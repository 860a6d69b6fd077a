"""Asks the battery of one server, in order, and stops as soon as the verdict is certain."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import drift, host
from .ask import WHOLE, Answered, Asker
from .battery import BATTERIES, BUDGET, ESSENTIAL, FIXED, SMALL, Prompt
from .client import Endpoint, get
from .judge import DEAD, DEGRADED, NAN, NOTE, Expect, Finding, comes_late, excerpt, judge
from .reply import Reply
from .server import About, load, look
from .verdict import Judged, Named, settle, verdict

Emit = Callable[[Mapping[str, Any]], None]
ENOUGH = 3  # prompts that were answered wrongly, after which more would only cost
MOST_ROOM = 4  # questions that are asked again with more room
WAITING = ("silent", "slow", "not-serving")  # what those of a burst meet for whom a server has no room


@dataclass
class Canary:
    """One run. `knowledge`: the model is expected to know answers and to write prose of its own. `answers`: the file
    with what it said when it was deployed: the first healthy run writes it, the later ones compare; `accept`: this run
    writes it anew, if it is healthy. `unit`, or else `log`: where a server that hides NaN from its answers still tells
    of it."""

    endpoint: Endpoint
    battery: str
    emit: Emit
    unit: str | None = None
    log: Path | None = None
    knowledge: bool = True
    budget: float | None = None
    answers: Path | None = None
    accept: bool = False
    prompts: Sequence[Prompt] = ()  # instead of the battery's
    seed: str = field(default_factory=lambda: secrets.token_hex(4))
    judged: list[Judged] = field(default_factory=list)
    after: list[Named] = field(default_factory=list)  # what is not about one reply
    sends_done: bool = False
    asked: list[str] = field(default_factory=list)
    prefixes: set[str] = field(default_factory=set)
    late: dict[str, bool] = field(default_factory=dict)  # asked again: an answer came, and only with more tokens
    conclusion: dict[str, Any] = field(default_factory=dict)  # the verdict's event, once there is one

    def run(self) -> str:
        """Ask, judge, and return the verdict; everything is also emitted as it happens."""
        self.began, began_unix = time.monotonic(), time.time()
        self.asker = Asker(self.endpoint, self.knowledge, self.seed)
        before, log = host.state(self.unit), host.Log(self.log)
        about = look(self.endpoint)
        self._greet(about)
        prompts = self._choose(about)
        limit = (self.budget or BUDGET[self.battery]) * (2 if about.busy else 1)
        for number, prompt in enumerate(prompts, 1):
            if time.monotonic() - self.began > limit:
                self._unfinished([p.name for p in prompts[number - 1 :]], limit)
                break
            self._ask(prompt, number, len(prompts))
            if self._certain():
                break
        self._compare()
        self._afterwards(before, host.nan_line(self.unit, began_unix) or log.nan_line())
        return self._conclude()

    # before

    def _greet(self, about: About) -> None:
        self.emit({"event": "server"} | asdict(about))
        self.sends_done = "version" in about.settings  # only SGLang has /server_info
        if about.models and self.endpoint.model not in about.models:
            self._note(f"the server has no model {self.endpoint.model!r}; asking {about.models[0]!r}")
            self.endpoint.model = about.models[0]
        self.endpoint.extras = {"chat_template_kwargs": {"enable_thinking": False}}
        if about.settings.get("enable_priority_scheduling"):
            low = 100 if about.settings.get("schedule_low_priority_values_first") else -100
            self.endpoint.extras["priority"] = low

    def _choose(self, about: About) -> list[Prompt]:
        prompts = list(self.prompts or BATTERIES[self.battery])
        if about.busy and self.battery != "gate":  # there the burst is the point, and people wait for its end anyway
            prompts = [prompt for prompt in prompts if prompt.name in SMALL]
        if about.busy:
            self.endpoint.silence *= 3
            asked = ", ".join(prompt.name for prompt in prompts)
            at_work = f"{about.running} running, {about.queued} waiting"
            self._note(f"the server is busy ({at_work}): asked patiently, one by one, and only {asked}")
        if about.context:
            short = [prompt.name for prompt in prompts if prompt.needs > about.context]
            if short:
                self._note(f"not asked, the server's context is {about.context} tokens: {', '.join(short)}")
            prompts = [prompt for prompt in prompts if prompt.needs <= about.context]
        captured = about.settings.get("cuda_graph_max_bs")
        most = max((prompt.streams for prompt in prompts), default=1)
        if isinstance(captured, int) and self.battery == "full" and most <= captured:
            self._note(f"graphs are captured up to {captured} requests: more than that at once was not asked")
        return prompts

    # during

    def _ask(self, prompt: Prompt, number: int, of: int) -> None:
        self.asked.append(prompt.name)
        known = set(self.endpoint.refused)
        hit_due = bool(prompt.prefix) and (prompt.prefix in self.prefixes or prompt.edge is not None)
        cached = self._cached() if hit_due else None
        answered = self.asker.ask(prompt)
        found: list[Finding] = []
        for reply, expect in answered:
            if reply.too_long:
                self._note(f"{prompt.name}: longer than the server's context, not judged")
                continue
            judged = [_room(finding, answered) for finding in judge(reply, expect)]
            if [one.kind for one in judged if one.grade != NOTE] == ["wrong-answer"]:
                judged = self._our_own_limits(prompt, reply, expect, judged)
            if prompt.echo:
                judged = _weighed(reply, judged, sglang=self.sends_done)
            self.judged.append(Judged(prompt.name, reply, tuple(judged)))
            found += [finding for finding in judged if finding not in found]
        first = answered[0][0]
        if hit_due and not first.cached_tokens and self._cached() == cached:
            miss = Finding("no-prefix-hit", NOTE, "the prefix cache was not used, so its failures were not looked for")
            self.after.append(Named(prompt.name, miss))
        self.prefixes.add(prompt.prefix)
        if new := self.endpoint.refused - known:
            self._note(f"the server does not take {', '.join(sorted(new))}: asked without")
        self._show(prompt, answered, found, number, of)

    def _our_own_limits(self, prompt: Prompt, reply: Reply, expect: Expect, judged: list[Finding]) -> list[Finding]:
        """An answer is not wrong that our limit of tokens ended before it came, or whose fact the server never read."""
        kind = ""
        if prompt.length and reply.prompt_tokens and reply.prompt_tokens < WHOLE * prompt.length:
            kind = (
                f"the server read only {reply.prompt_tokens} of some {prompt.length} tokens: the fact was not in them"
            )
        elif reply.finish_reason == "length" and self._wordy(prompt, reply, expect):
            kind = f"the answer did not come within {prompt.max_tokens} tokens, and comes with more"
        note = Finding("cut-short", NOTE, kind)
        return [note if kind and one.kind == "wrong-answer" else one for one in judged]

    def _wordy(self, prompt: Prompt, reply: Reply, expect: Expect) -> bool:
        """Asked a few times only: a server that always needed more room needs it always."""
        name = expect.wanted if prompt.streams > 1 else prompt.name
        if name not in self.late:
            asked = len(self.late) < MOST_ROOM
            whole = self.asker.with_room(prompt, expect) if asked else None
            self.late[name] = comes_late(whole, expect, len(reply.text)) if whole else all(self.late.values())
        return self.late[name]

    def _cached(self) -> float | None:
        """Prompt tokens answered by the prefix cache so far, where the server counts them."""
        return load(self.endpoint).get("cached")

    def _show(self, prompt: Prompt, answered: Answered, found: list[Finding], number: int, of: int) -> None:
        faults = [finding for finding in found if finding.grade != NOTE]
        counted = [reply.completion_tokens for reply, _ in answered if reply.completion_tokens is not None]
        first = answered[0][0]
        self.emit(
            {
                "event": "prompt",
                "number": number,
                "of": of,
                "name": prompt.name,
                "ok": not faults,
                "why": prompt.why,
                "seconds": round(max(reply.seconds for reply, _ in answered), 3),
                "ttft": None if first.first_byte is None else round(first.first_byte, 3),
                "prompt_tokens": first.prompt_tokens,
                "completion_tokens": sum(counted) if counted else None,
                "cached_tokens": first.cached_tokens,
                "excerpt": excerpt(first.text),
                "findings": [asdict(finding) for finding in found],
            }
        )

    @property
    def findings(self) -> list[Named]:
        """Everything found so far, once for each prompt."""
        return list(dict.fromkeys([*settle(self.judged, sends_done=self.sends_done), *self.after]))

    def _certain(self) -> bool:
        found = self.findings
        wrong = {entry.prompt for entry in found if entry.finding.grade == DEGRADED}
        barred = any(entry.finding.kind == "unauthorised" for entry in found)
        return barred or len(wrong) >= ENOUGH or any(entry.finding.grade in (NAN, DEAD) for entry in found)

    # afterwards

    def _compare(self) -> None:
        """With the answers of the deploy."""
        found = drift.compare(drift.kept(self.answers), self._fixed()) if self.answers else None
        if found and self.accept:
            self._note(f"taken as meant: {found.evidence}")
        elif found:
            self.after.append(Named("after", found))

    def _fixed(self) -> dict[str, Reply]:
        return {one.prompt: one.reply for one in self.judged if one.prompt in FIXED and one.reply.answered}

    def _afterwards(self, before: host.HostState, line: str | None) -> None:
        """What the server and the host look like now: a healthy answer before a crash proves nothing."""
        gone = any(entry.finding.kind in ("dropped", "silent") for entry in self.findings)
        after = host.state(self.unit)
        waited = time.monotonic() + 8  # SGLang 0.5.23 sleeps 5 s between the crash and its end
        while gone and before.pid and after.pid == before.pid and time.monotonic() < waited:
            time.sleep(1)
            after = host.state(self.unit)
        if before.pid is not None and (after.pid, after.restarts) != (before.pid, before.restarts):
            now = f"PID {before.pid} -> {after.pid}, restarts {before.restarts} -> {after.restarts}, now {after.active}"
            self._find("restarted", DEAD, f"the server died under the canary: {now}")
        if before.xids is not None and (after.xids or 0) > before.xids:
            self._find(
                "xid", DEAD, f"the kernel reported {(after.xids or 0) - before.xids} new Xid while the canary ran"
            )
        if line:
            self._find("journal-nan", NAN, f"the journal says: {line}")
        status, body = get(self.endpoint, "/health", timeout=22.0)  # SGLang itself waits 20 s for a token
        if status == 0 and not any(entry.finding.grade == DEAD for entry in self.findings):
            self._find("dropped", DEAD, f"/health does not answer: {body.decode()}")
        elif status >= 500 and not any(entry.finding.kind == "bad-gateway" for entry in self.findings):
            self._find("not-serving", DEGRADED, f"/health says {status}")

    def _conclude(self) -> str:
        findings = self.findings
        answered = any(one.reply.status == 200 for one in self.judged)
        said = verdict([entry.finding for entry in findings], answered=answered)
        spent = round(time.monotonic() - self.began, 2)
        self.conclusion = {"event": "verdict", "verdict": said, "findings": _plain(findings), "seconds": spent}
        self.conclusion |= {"requests": self.asker.requests, "tokens": self.asker.tokens, "asked": self.asked}
        self.conclusion["accepted"] = self._record(said)
        self.emit(self.conclusion)
        return said

    def _record(self, said: str) -> bool:
        """Whether this run's answers are the ones that later runs are compared with, from now on."""
        fixed = self._fixed()
        if not self.answers or said != "healthy" or len(fixed) < len(FIXED):
            return False
        return (self.accept or not self.answers.exists()) and drift.keep(self.answers, fixed)

    def _unfinished(self, names: list[str], limit: float) -> None:
        missing = [name for name in ESSENTIAL if name in names]
        grade = DEGRADED if missing else NOTE
        self._find("unfinished", grade, f"{limit:.0f} s were spent before {', '.join(names)} could be asked")

    def _find(self, kind: str, grade: str, evidence: str) -> None:
        self.after.append(Named("after", Finding(kind, grade, evidence)))

    def _note(self, text: str) -> None:
        self.emit({"event": "note", "text": text})


def _weighed(reply: Reply, found: list[Finding], *, sglang: bool) -> list[Finding]:
    """Only NaN counts here: many servers have no such route, answer it badly, or fill the places of the prompt's
    logprobs with null. SGLang does weigh a prompt, so there all null is NaN too."""
    blank = all(entry.value is None for entry in reply.logprobs[1:])
    nan = [one for one in found if one.grade == NAN and (sglang or not blank or one.kind != "null-logprob")]
    if nan or not blank:
        return nan
    why = f"HTTP {reply.status}" if reply.status not in (0, 200) else reply.failure or "none in the answer"
    return [Finding("no-logprobs", NOTE, f"the server does not weigh a prompt's own tokens: {why}")]


def _room(finding: Finding, answered: Answered) -> Finding:
    """A server that works on few at once lets the rest of a burst wait, or turns them away: that is no sickness, as
    long as the others are answered one after another. Where these were quick and the rest heard nothing, it is one."""
    if len(answered) == 1 or finding.kind not in WAITING:
        return finding
    served = [reply.seconds for reply, _ in answered if reply.answered]
    longest = max(reply.seconds for reply, _ in answered)
    queued = served and (finding.kind == "not-serving" or max(served) > 0.3 * longest)
    return replace(finding, kind="queued", grade=NOTE) if queued else finding


def _plain(findings: list[Named]) -> list[dict[str, str]]:
    return [asdict(entry.finding) | {"prompt": entry.prompt} for entry in findings]
