"""Asks the battery of one server, in order, and stops as soon as the verdict is certain."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from . import host, prose
from .battery import BATTERIES, BUDGET, EASY, ESSENTIAL, GREEDY, SAMPLED, Prompt
from .client import Endpoint, complete, get
from .judge import DEAD, DEGRADED, NAN, NOTE, Expect, Finding, excerpt, judge
from .reply import Reply
from .server import About, load, look
from .verdict import Judged, Named, settle, verdict

Emit = Callable[[Mapping[str, Any]], None]
FRAME = 30  # prompt tokens, about, around the filler: template, needle and question
ENOUGH = 3  # prompts that were answered wrongly, after which more would only cost


@dataclass
class Canary:
    """One run. `knowledge`: the model is expected to know answers and to write prose of its own."""

    endpoint: Endpoint
    battery: str
    emit: Emit
    unit: str | None = None
    knowledge: bool = True
    budget: float | None = None
    seed: str = field(default_factory=lambda: secrets.token_hex(4))
    requests: int = 0
    tokens: int = 0
    judged: list[Judged] = field(default_factory=list)
    after: list[Named] = field(default_factory=list)  # what is not about one reply
    sends_done: bool = False
    per_word: float | None = None  # prompt tokens that a word of the filler costs, as measured
    asked: list[str] = field(default_factory=list)
    prefixes: set[str] = field(default_factory=set)
    words: dict[str, int] = field(default_factory=dict)  # of each filling, once it was chosen
    conclusion: dict[str, Any] = field(default_factory=dict)  # the verdict's event, once there is one

    def run(self) -> str:
        """Ask, judge, and return the verdict; everything is also emitted as it happens."""
        self.began, began_unix = time.monotonic(), time.time()
        before = host.state(self.unit)
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
        self._afterwards(before, began_unix)
        findings = self.findings
        said = verdict(
            [entry.finding for entry in findings], answered=any(one.reply.status == 200 for one in self.judged)
        )
        spent = round(time.monotonic() - self.began, 2)
        self.conclusion = {"event": "verdict", "verdict": said, "findings": _plain(findings), "seconds": spent}
        self.conclusion |= {"requests": self.requests, "tokens": self.tokens, "asked": self.asked}
        self.emit(self.conclusion)
        return said

    # before

    def _greet(self, about: About) -> None:
        self.emit({"event": "server"} | asdict(about))
        self.sends_done = "version" in about.settings  # only SGLang has /server_info
        if about.models and self.endpoint.model not in about.models:
            self._note(f"the server has no model {self.endpoint.model!r}; asking {about.models[0]!r}")
            self.endpoint.model = about.models[0]
        if about.busy:
            self.endpoint.silence *= 3
            self._note(
                f"the server is busy ({about.running} running, {about.queued} waiting): asked one at a time, patiently"
            )
        self.endpoint.extras = {"chat_template_kwargs": {"enable_thinking": False}}
        if about.settings.get("enable_priority_scheduling"):
            low = 100 if about.settings.get("schedule_low_priority_values_first") else -100
            self.endpoint.extras["priority"] = low

    def _choose(self, about: About) -> list[Prompt]:
        prompts = list(BATTERIES[self.battery])
        if about.busy and self.battery != "gate":  # there the burst is the point, and people wait for its end anyway
            prompts = [prompt for prompt in prompts if prompt.streams == 1]
        if about.context:
            short = [prompt.name for prompt in prompts if prompt.needs > about.context]
            if short:
                self._note(f"not asked, the server's context is {about.context} tokens: {', '.join(short)}")
            prompts = [prompt for prompt in prompts if prompt.needs <= about.context]
        return prompts

    # during

    def _ask(self, prompt: Prompt, number: int, of: int) -> None:
        self.asked.append(prompt.name)
        hit_due = bool(prompt.prefix) and prompt.prefix in self.prefixes
        cached = self._cached() if hit_due else None
        if prompt.streams > 1:
            replies = self._burst(prompt)
        else:
            replies = [(self._send(prompt, self._text(prompt)), self._expect(prompt.expect))]
            if prompt.length:
                self._learn(replies[0][0], self.words[prompt.prefix or prompt.name] + prompt.extra)
        found: list[Finding] = []
        for reply, expect in replies:
            judged = judge(reply, expect)
            if _too_long(reply):
                self._note(f"{prompt.name}: longer than the server's context, not judged")
                continue
            self.judged.append(Judged(prompt.name, reply, tuple(judged)))
            found += [finding for finding in judged if finding not in found]
        if hit_due and not replies[0][0].cached_tokens and self._cached() == cached:
            miss = Finding("no-prefix-hit", NOTE, "the prefix cache was not used, so its failures were not looked for")
            self.after.append(Named(prompt.name, miss))
        self.prefixes.add(prompt.prefix)
        self._show(prompt, replies[0][0], replies, found, number, of)

    def _cached(self) -> float | None:
        """Prompt tokens answered by the prefix cache so far, where the server counts them."""
        return load(self.endpoint).get("cached")

    def _text(self, prompt: Prompt) -> str:
        if prompt.length is None:
            return prompt.text
        filling = prompt.prefix or prompt.name
        if filling not in self.words:  # the same prompt twice must be the same to the last word
            self.words[filling] = round((prompt.length - FRAME) / self._cost_of_a_word())
        words = self.words[filling]
        return prose.with_needle(words, f"{self.seed} {filling}", prompt.text, extra=prompt.extra)

    def _cost_of_a_word(self) -> float:
        """Prompt tokens a word of filler: measured with 200 words and one token of answer, then learned from each
        long prompt."""
        if self.per_word is None:
            probe = Prompt(name="measure", why="", text="", expect=Expect(), max_tokens=1)
            self._learn(self._send(probe, prose.filler(200, f"{self.seed} measure")), 200, frame=8)
        return max(self.per_word or 1.35, 0.5)

    def _learn(self, reply: Reply, words: int, frame: int = FRAME) -> None:
        if reply.prompt_tokens:
            self.per_word = (reply.prompt_tokens - frame) / words

    def _send(self, prompt: Prompt, text: str) -> Reply:
        request: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": prompt.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **prompt.sampling,
        }
        if prompt.logprobs or not self.knowledge:
            # A model that is not expected to speak well is judged by its numbers.
            request |= {"logprobs": True, "top_logprobs": 3}
        endpoint = replace(self.endpoint, extras=dict(self.endpoint.extras))
        if prompt.thinking:
            endpoint.extras.pop("chat_template_kwargs", None)
        limit = self.endpoint.silence + prompt.max_tokens / 2
        reply = complete(endpoint, request, limit=limit)
        if not endpoint.extras:
            self.endpoint.extras = {}
        self.requests += 1
        self.tokens += (reply.prompt_tokens or 0) + (reply.completion_tokens or 0)
        return reply

    def _burst(self, prompt: Prompt) -> list[tuple[Reply, Expect]]:
        chosen = [EASY[at % len(EASY)] for at in range(prompt.streams)]

        def one(at: int) -> Reply:
            return self._send(replace(prompt, sampling=SAMPLED if at % 2 else GREEDY), chosen[at][0])

        with ThreadPoolExecutor(prompt.streams) as pool:
            replies = list(pool.map(one, range(prompt.streams)))
        return [(reply, self._expect(expect)) for reply, (_, expect) in zip(replies, chosen, strict=True)]

    def _expect(self, expect: Expect) -> Expect:
        return expect if self.knowledge else replace(expect, answer=(), fluent=False, shortest=1)

    def _show(
        self,
        prompt: Prompt,
        first: Reply,
        replies: list[tuple[Reply, Expect]],
        found: list[Finding],
        number: int,
        of: int,
    ) -> None:
        faults = [finding for finding in found if finding.grade != NOTE]
        counted = [reply.completion_tokens for reply, _ in replies if reply.completion_tokens is not None]
        self.emit(
            {
                "event": "prompt",
                "number": number,
                "of": of,
                "name": prompt.name,
                "ok": not faults,
                "why": prompt.why,
                "seconds": round(max(reply.seconds for reply, _ in replies), 3),
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

    def _afterwards(self, before: host.HostState, began: float) -> None:
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
        line = host.nan_line(self.unit, began)
        if line:
            self._find("journal-nan", NAN, f"the journal says: {line}")
        status, body = get(self.endpoint, "/health", timeout=22.0)  # SGLang itself waits 20 s for a token
        if status == 0 and not any(entry.finding.grade == DEAD for entry in self.findings):
            self._find("dropped", DEAD, f"/health does not answer: {body.decode()}")
        elif status >= 500:
            self._find("not-serving", DEGRADED, f"/health says {status}")

    def _unfinished(self, names: list[str], limit: float) -> None:
        missing = [name for name in ESSENTIAL if name in names]
        grade = DEGRADED if missing else NOTE
        self._find("unfinished", grade, f"{limit:.0f} s were spent before {', '.join(names)} could be asked")

    def _find(self, kind: str, grade: str, evidence: str) -> None:
        self.after.append(Named("after", Finding(kind, grade, evidence)))

    def _note(self, text: str) -> None:
        self.emit({"event": "note", "text": text})


def _plain(findings: list[Named]) -> list[dict[str, str]]:
    return [asdict(entry.finding) | {"prompt": entry.prompt} for entry in findings]


def _too_long(reply: Reply) -> bool:
    return reply.status in (400, 413, 422) and ("context" in reply.error or "longer than" in reply.error)
