"""The canary's verdict on real engines on this CPU, healthy and with each poison; `python -m bench.tables canary`.

Engines and poisons are those of lab/engine. What is asked is the quick battery, and for most healthy runs
prompts that differ from run to run, greedy and sampled; the models are tiny, so they are judged by their numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lab.engine.prepared import FAULTS
from lab.engine.serve import ENGINES, Serving, serving
from runbooks.canary.probe import prose
from runbooks.canary.probe.battery import EASY, STORY, Prompt, burst
from runbooks.canary.probe.client import Endpoint
from runbooks.canary.probe.judge import Expect
from runbooks.canary.probe.run import Canary
from runbooks.engine.errors import RunbookError


@dataclass(frozen=True)
class Run:
    engine: str
    fault: str  # of prepared.FAULTS, or healthy
    verdict: str
    requests: int
    tokens: int
    seconds: float
    proof: str  # prompt: kind, of the finding that made the verdict

    @property
    def right(self) -> bool:
        """NaN must be called NaN, whatever the server makes of it; a sound server is healthy."""
        return self.verdict == ("healthy" if self.fault == "healthy" else "nan")

    def __str__(self) -> str:
        cost = f"{self.requests:3} requests {self.tokens:6} tokens {self.seconds:6.1f} s"
        mark = " " if self.right else "!"
        return f"{mark} {self.engine:24} {self.fault:12} {self.verdict:9} {cost}   {self.proof}"


def ask(at: Serving, engine: str, fault: str, prompts: Sequence[Prompt] = ()) -> Run:
    """One run of the quick battery, or of other prompts, on a server that is up. Patient: this machine may be busy."""
    endpoint = Endpoint(at.url, at.model, silence=300.0)
    canary = Canary(endpoint, "quick", lambda _event: None, log=at.log, knowledge=False, budget=3600.0, prompts=prompts)
    said = canary.run()
    faults = [one for one in canary.conclusion["findings"] if one["grade"] == said]
    proof = f"{faults[0]['prompt']}: {faults[0]['kind']}" if faults else ""
    end = canary.conclusion
    return Run(engine, fault, said, end["requests"], end["tokens"], end["seconds"], proof)


def runs(engines: Sequence[str], faults: Sequence[str]) -> Iterator[Run]:
    """Each engine is started once, and again where it died of the weights before or cannot take others."""
    for engine in engines:
        left = list(faults)
        while left:
            try:
                with serving(engine, left[0]) as at:
                    yield ask(at, engine, left.pop(0))
                    while left and at.load(left[0]):
                        yield ask(at, engine, left.pop(0))
            except RunbookError as error:
                yield Run(engine, left.pop(0), "no start", 0, 0, 0.0, error.message)


def varied(seed: int) -> list[Prompt]:
    """Prompts of one healthy run: known questions and a story, greedy and sampled at a temperature of its own, texts of
    any length up to some hundred tokens, and a burst of any size."""
    draw = random.Random(seed)
    heat = {"temperature": round(draw.uniform(0.2, 1.0), 2), "top_p": round(draw.uniform(0.8, 1.0), 2)}
    found = []
    for at, (text, expect) in enumerate((*draw.sample(EASY, 3), STORY)):
        most = draw.randint(16, 64)
        one = Prompt(name=f"known-{at}", why="", text=text, expect=expect, max_tokens=most, logprobs=at == 0)
        found += [one, replace(one, name=f"known-{at}-sampled", sampling=heat)]
    text, length = prose.NEEDLE_QUESTION, draw.randint(80, 600)
    unknown = Expect(fluent=False, known=False)
    far = Prompt(name="far", why="", text=text, expect=unknown, max_tokens=24, length=length, prefix="far")
    return [*found, far, replace(far, name="far-again", sampling=heat), burst(draw.randint(2, 12))]


def healthy(engines: Sequence[str], many: int) -> Iterator[Run]:
    """So many runs, shared out among the engines; each engine is started once. Each tenth is the quick battery."""
    for number, engine in enumerate(engines):
        share = many // len(engines) + (number < many % len(engines))
        with serving(engine, "healthy") as at:
            for turn in range(share):
                prompts = varied(1000 * number + turn) if turn % 10 else []
                yield ask(at, engine, "healthy", prompts)


def table(found: Sequence[Run]) -> str:
    """Engine x fault: verdict, as Markdown."""
    faults = list(dict.fromkeys(one.fault for one in found))
    lines = ["| engine | " + " | ".join(faults) + " |", "|---" * (len(faults) + 1) + "|"]
    for engine in dict.fromkeys(one.engine for one in found):
        said = {one.fault: one.verdict if one.right else f"**{one.verdict}**" for one in found if one.engine == engine}
        lines.append(f"| {engine} | " + " | ".join(said.get(fault, "") for fault in faults) + " |")
    return "\n".join(lines)


def show(
    engines: Sequence[str] | None = None, faults: Sequence[str] | None = None, healthy_runs: int | None = None
) -> int:
    """`healthy_runs`: only healthy engines, so many runs in all. Exit code 1 where a verdict is wrong."""
    engines, faults = engines or list(ENGINES), faults or ["healthy", *FAULTS]
    found = []
    for run in healthy(engines, healthy_runs) if healthy_runs else runs(engines, faults):
        found.append(run)
        print(run, flush=True)
    wrong = [run for run in found if not run.right]
    print(f"\n{table(found)}\n\n{len(found)} runs, {len(wrong)} wrong")
    return int(bool(wrong))
