"""What somebody asks of a sweep, checked before any host is touched, and as the load generator's command line."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runbooks.bench.loadgen import options as loadgen
from runbooks.engine.errors import UsageError
from runbooks.inventory.shape import Bench
from runbooks.paths import expand

MOST_STREAMS = 4096


@dataclass(frozen=True)
class BenchOptions:
    """None, or what is empty: as the inventory says. Lengths in tokens, `512` or `256-1024`; times in seconds."""

    concurrency: tuple[int, ...] = ()
    rate: tuple[float, ...] = ()  # instead: requests a second, whatever the server does
    workload: str = ""
    input_len: int | str | None = None
    output_len: int | str | None = None
    lengths: Path | None = None  # pairs to draw from
    api: str = ""
    repeats: int | None = None
    precision: float | None = None
    warmup: float | None = None
    window: float | None = None
    resume: bool = False
    force: bool = False
    canary: bool = True
    self_check: bool = True  # the null server, under five seconds
    command: str = "invoke bench"

    def words(self, bench: Bench, lengths: str = "") -> list[str]:
        """The load generator's options but for place and server. `lengths`: where it finds the file of pairs."""
        many = bench.repeats if self.repeats is None else self.repeats
        warmup = bench.warmup if self.warmup is None else self.warmup
        window = bench.window if self.window is None else self.window
        precision = bench.precision if self.precision is None else self.precision
        words = ["--json", "--warmup", f"{min(warmup, window):g}", "--window", f"{window:g}"]
        words += ["--precision", f"{precision:g}", "--repeats", str(many), *(["--split-test"] if many > 1 else [])]
        if self.rate and self.concurrency:
            raise UsageError("concurrency and rate: a closed loop holds streams, an open one a rate; one of them")
        if self.rate:
            words += ["--rate", ",".join(f"{one:g}" for one in self.rate)]
        else:
            words += ["--concurrency", ",".join(map(str, self.concurrency or bench.concurrency))]
        words += ["--workload", self.workload] if self.workload else []
        usual = (None, None) if self.workload else (bench.input_len, bench.output_len)
        for name, asked, else_ in (("input", self.input_len, usual[0]), ("output", self.output_len, usual[1])):
            words += [f"--{name}-len", str(asked or else_)] if asked or else_ else []
        words += ["--lengths", lengths or str(self.lengths)] if self.lengths else []
        words += ["--api", self.api] if self.api else []
        words += ["--force"] if self.force else []
        words += ["--self-check"] if self.self_check else []
        return words

    def checked(self, bench: Bench, url: str = "http://127.0.0.1:1") -> loadgen.Options:
        """As the load generator will understand it. Raises UsageError."""
        try:
            return loadgen.options_of(["--url", url, *self.words(bench)])
        except ValueError as error:
            raise UsageError(str(error)) from None


def options_of(
    *,
    concurrency: Sequence[str] = (),
    rate: Sequence[str] = (),
    workload: str = "",
    input_len: str = "",
    output_len: str = "",
    lengths: str = "",
    api: str = "",
    window: float = 0.0,
    precision: str = "",
    repeats: int = 0,
    resume: bool = False,
    force: bool = False,
) -> BenchOptions:
    """From the command line, where nothing and zero mean: as the inventory says. Raises UsageError."""
    if window < 0 or repeats < 0:
        raise UsageError("window, repeats: these are positive numbers")
    try:
        part = float(precision) if precision else None
    except ValueError:
        raise UsageError(f"precision: {precision!r} is not a number such as 0.02") from None
    return BenchOptions(
        concurrency=streams_of(concurrency),
        rate=rates_of(rate),
        workload=workload,
        input_len=input_len or None,
        output_len=output_len or None,
        lengths=expand(lengths) if lengths else None,
        api=api,
        window=window or None,
        precision=part,
        repeats=repeats or None,
        resume=resume,
        force=force,
        command=shlex.join(["invoke", *sys.argv[1:]]),
    )


def streams_of(words: Sequence[str]) -> tuple[int, ...]:
    """`8`, or `1,2,4`, each more than once. Raises UsageError for what is no number of streams."""
    parts = _parts(words)
    wrong = [part for part in parts if not re.fullmatch("[0-9]{1,5}", part) or not 1 <= int(part) <= MOST_STREAMS]
    if wrong:
        raise UsageError(f"concurrency: {_quoted(wrong)} is not a number of streams (1 to {MOST_STREAMS})")
    return tuple(dict.fromkeys(int(part) for part in parts))


def rates_of(words: Sequence[str]) -> tuple[float, ...]:
    """`0.5`, or `1,2`, each more than once. Raises UsageError for what is no number of requests a second."""
    found = {part: _number(part) for part in _parts(words)}
    wrong = [part for part, value in found.items() if not 0 < value < 1e5]
    if wrong:
        raise UsageError(f"rate: {_quoted(wrong)} is not a number of requests a second")
    return tuple(dict.fromkeys(found.values()))


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return 0.0


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(repr(word[:40]) for word in words[:9])


def _parts(words: Sequence[str]) -> list[str]:
    return [part.strip() for word in words for part in str(word).split(",") if part.strip()]
