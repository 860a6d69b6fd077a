"""Starts a real engine on the CPU with one of the tiny models, for tests and for the table of bench/canary."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from lab.engine.flags import source, unpacked
from lab.engine.prepared import ENVIRONMENT, prepare
from lab.machine import cache
from runbooks.engine.errors import RunbookError

ACCELERATE = "1.15.0"  # what transformers serve wants beside what SGLang has in the environment
PATIENCE = 400.0  # seconds until a start counts as failed; 10 to 30 are usual on two cores, minutes on busy ones


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An engine. `family` is the tiny models' (lab/engine/tiny.py); `version` None: transformers serve."""

    family: str = "tiny-glm"
    version: str | None = None
    words: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


ENGINES: Mapping[str, Kind] = {
    "sglang-0.5.9": Kind(version="0.5.9"),
    "sglang-0.5.9-nandetect": Kind(version="0.5.9", words=["--enable-nan-detection"]),
    "sglang-0.5.10": Kind(version="0.5.10.post1"),
    "sglang-0.5.23": Kind(version="0.5.23"),
    "sglang-0.5.23-sanitize": Kind(version="0.5.23", environment={"SGLANG_SANITIZE_NAN_LOGITS": "1"}),
    "transformers-glm5": Kind(family="tiny-glm5"),
}
"""`nandetect` and `sanitize` are SGLang's own ways of replacing NaN logits, which hide them from the text."""


@dataclass(frozen=True)
class Serving:
    url: str
    model: str  # the name to ask for
    log: Path
    process: subprocess.Popen[bytes]
    models: Path  # the folder of its family's models, but for the model's name

    def load(self, model: str) -> bool:
        """Take other weights without a start, which SGLang can; False where it cannot, or died of the former ones."""
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=120)
        body = json.dumps({"model_path": f"{self.models}-{model}"})
        try:
            connection.request("POST", "/update_weights_from_disk", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status == 200 and bool(json.loads(answer.read()).get("success"))
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()


@contextmanager
def serving(engine: str, model: str) -> Iterator[Serving]:
    """The engine with a model of `prepared.MODELS`, from the moment on at which it answers on its port. Its processes
    end with the block. Raises RunbookError with its last lines where it does not start."""
    kind, made = ENGINES[engine], prepare(lambda _text: None)
    folder = made.models / f"{kind.family}-{model}"
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    environment = {**os.environ, **ENVIRONMENT, **kind.environment}
    beside = cache() / "engine" / f"accelerate-{ACCELERATE}"
    beside = source(kind.version) if kind.version else unpacked("accelerate", ACCELERATE, beside)
    environment["PYTHONPATH"] = str(beside)
    command = [str(made.python), *(_sglang(folder, port) if kind.version else _transformers(folder, port)), *kind.words]
    with tempfile.TemporaryDirectory(prefix="runbooks-engine-") as scratch:
        log = Path(scratch) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["nice", *command], env=environment, stdout=out, stderr=out, start_new_session=True, cwd=scratch
            )
        try:
            _wait(port, process, log)
            yield Serving(
                f"http://127.0.0.1:{port}",
                "glm-5" if kind.version else str(folder),
                log,
                process,
                made.models / kind.family,
            )
        finally:
            _end(process)


def _sglang(folder: Path, port: int) -> list[str]:
    words = ["-m", "sglang.launch_server", f"--model-path={folder}", "--served-model-name=glm-5", f"--port={port}"]
    words += ["--device=cpu", "--attention-backend=torch_native", "--mem-fraction-static=0.05"]
    words += ["--max-total-tokens=65536", "--max-running-requests=72", "--enable-metrics", "--enable-cache-report"]
    return words


def _transformers(folder: Path, port: int) -> list[str]:
    return ["-m", "transformers.cli.transformers", "serve", str(folder), "--device=cpu", f"--port={port}"]


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        if _answers(port):
            return
        time.sleep(0.5)
    raise RunbookError("the engine did not start", details=log.read_text(errors="replace").splitlines()[-8:])


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """The whole process group: an engine that died of NaN leaves workers behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait(20)
