"""The load generator against the real SGLang on this machine's CPU: a healthy tiny model, and one that makes NaN.

Slow: the engine is downloaded into the lab's cache first (minutes, once), and takes half a minute to start.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import engine
from runbooks.bench.loadgen import rawlog
from runbooks.bench.loadgen.prompts import LEAD, WORDS
from runbooks.bench.loadgen.server import Server
from runbooks.bench.loadgen.summary import points_of
from runbooks.bench.loadgen.wire import APIS, Shape, Target
from runbooks.bench.validity import Limits, faults
from runbooks.engine.errors import UsageError
from tests.bench.generator import measured
from tests.lab.sglang_standin import free_port, wait_for

pytestmark = pytest.mark.slow

CPU = "--device cpu --attention-backend torch_native --mem-fraction-static 0.05 --max-total-tokens 16384"
ALWAYS = f"{CPU} --enable-metrics --served-model-name glm-5"
FLAGS = f"{ALWAYS} --enable-cache-report --disable-radix-cache"
SWEEP = ("--concurrency", "1,2,4,8", "--window", "6", "--warmup", "1", "--drain", "30", "--silence", "30")


@contextmanager
def served(model: str, folder: Path, flags: str = FLAGS) -> Iterator[str]:
    try:
        made = engine.prepare(print)
    except UsageError as missing:
        pytest.skip(str(missing))
    port, log = free_port(), folder / "server.log"
    words = ["--model-path", str(made.models / f"{engine.PREFIX}{model}"), "--port", str(port), *flags.split()]
    with log.open("wb") as out:
        command = [str(made.python), "-m", "sglang.launch_server", *words]
        process = subprocess.Popen(
            command, env={**os.environ, **engine.ENVIRONMENT}, stdout=out, stderr=out, cwd=folder
        )
    try:
        wait_for(lambda: b"ready to roll" in log.read_bytes() or process.poll() is not None, "the real SGLang", 600)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()  # its workers end with it
        process.wait(timeout=60)


def judged(folder: Path) -> list[tuple[dict[str, Any], list[str]]]:
    info = json.loads((folder / "run.json").read_text())["server_info_before"]
    logs = sorted(folder.glob("*.bin"))
    points = points_of((log.name, rawlog.decode(log.read_bytes())) for log in logs)
    return [(point, faults(point, Limits.of(info), None)) for point in points]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served("healthy", tmp_path_factory.mktemp("healthy")) as url:
        yield url


@pytest.mark.parametrize("more", ["chat", "completions", "generate", "generate --token-ids 1:400"])
def test_it_agrees_with_the_servers_own_counters(pyz: Path, healthy: str, tmp_path: Path, more: str) -> None:
    """One sweep right after another, not forced: 0.5.10's gauge of running requests is stale on an idle server."""
    assert measured(pyz, healthy, tmp_path / "out", *SWEEP, "--api", *more.split())[0] == 0
    for point, found in judged(tmp_path / "out"):
        assert abs(point["server"]["difference"]) <= 0.01, point["server"]
        assert point["tokens"]["prompt_off"] == 0  # of 40, in a tokenizer of 394 tokens, where words are many
        assert not [fault for fault in found if "tokens" in fault or "failed" in fault], found


def test_the_cache_is_told_by_a_counter_where_usage_is_silent(tmp_path: Path) -> None:
    """Without --enable-cache-report; and before the first hit, SGLang does not name the counter at all."""
    with served("healthy", tmp_path, ALWAYS) as url:
        server, shape = Server(Target.parse(url), None), Shape("chat", "glm-5", 0.0, 1.0)
        body = shape.body(f"{LEAD} {' '.join(WORDS[:12])}", 1, stream=False)
        before = server.settled()
        answers = [json.loads(server.ask("POST", APIS["chat"], body, 60.0)[1]) for _ in range(3)]
        after = server.settled()
    tokens = answers[0]["usage"]["prompt_tokens"]
    assert not any((one["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") for one in answers)
    assert before is not None
    assert "cached_tokens" not in before
    assert after is not None
    assert 2 * 0.8 * tokens < after["cached_tokens"] <= 2 * tokens


def test_every_point_of_a_model_that_makes_nan_is_invalid(pyz: Path, tmp_path: Path) -> None:
    """`sglang.bench_serving` calls the same run successful: 40 of 40, at 665 tok/s."""
    with served("nan-layer", tmp_path) as url:
        rc, _ = measured(pyz, url, tmp_path / "out", *SWEEP, "--temperature", "0", "--top-p", "1")
    assert rc == 0
    found = judged(tmp_path / "out")
    assert len(found) == 4
    for _, reasons in found:
        assert any("garbage: '!!!!'" in reason for reason in reasons), reasons
