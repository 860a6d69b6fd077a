"""Every captured file is replayed: what servers say of themselves, by a socket; what they say to wrong requests; a
crash's log."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runbooks.canary.probe import host
from runbooks.canary.probe.client import Endpoint, get
from runbooks.canary.probe.judge import judge
from runbooks.canary.probe.server import look
from runbooks.diagnose import classify
from tests.canary.captures import DATA, EXPECTED, NOT_THERE, WRONGLY_ASKED, answers, read_capture

PATHS = {
    "/v1/models": "get_models",
    "/metrics": "get_metrics_after",
    "/health": "get_health_after",
    "/health_generate": "get_health_generate",
    "/server_info": "get_server_info2",
    "/get_server_info": "get_server_info",
    "/model_info": "get_model_info",
    "/version": "get_version",
}
ALSO = {"get_metrics": "get_metrics_after", "get_health": "get_health_after"}  # before the others were asked


@contextmanager
def replayed(engine: str) -> Iterator[str]:
    """A socket that answers each path with the very bytes that the engine sent; a path without a capture: 404."""

    def serve(door: socket.socket) -> None:
        while True:
            try:
                peer, _ = door.accept()
            except OSError:
                return
            with peer:
                path = peer.recv(65536).split(b" ")[1].decode()
                names = [PATHS.get(path, "?"), *(old for old, new in ALSO.items() if new == PATHS.get(path))]
                found = next((file for name in names if (file := DATA / engine / f"{name}.resp").exists()), None)
                peer.sendall(found.read_bytes() if found else b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=serve, args=(door,), daemon=True).start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}"


def status_of(file: Path) -> int:
    raw = file.read_bytes()
    return int(raw.split()[1]) if raw else 0


@pytest.mark.served
@pytest.mark.parametrize("engine", EXPECTED)
def test_what_a_server_says_of_itself_is_read(engine: str) -> None:
    folder = DATA / engine
    with replayed(engine) as url:
        endpoint = Endpoint(url, "glm-5")
        about = look(endpoint)
        for path, name in PATHS.items():
            if (file := folder / f"{name}.resp").exists():
                assert get(endpoint, path)[0] == status_of(file), path
    models = folder / "get_models.resp"
    assert bool(about.models) == (models.exists() and status_of(models) == 200)
    if engine.startswith("sglang") and status_of(folder / "get_metrics_after.resp") == 200:
        assert about.running == 0
        assert about.generated is not None
        assert about.generated > 0
    if engine == "sglang0523-llama-healthy":
        assert about.settings["version"] == "0.5.23"
        assert about.settings["kv_cache_dtype"] == "auto"
    assert not about.busy


@pytest.mark.parametrize("engine", EXPECTED)
def test_a_wrong_request_is_no_sign_of_nan(engine: str) -> None:
    for case in WRONGLY_ASKED:
        if (file := DATA / engine / f"{case}.resp").exists():
            reply = read_capture(file)
            assert not any(finding.grade == "nan" for finding in judge(reply)), file
            assert reply.too_long == (case == "chat_too_long" and reply.status == 400)


def test_no_captured_file_is_left_out() -> None:
    asked = {*PATHS.values(), *ALSO, *WRONGLY_ASKED}
    for file in DATA.rglob("*.resp"):
        engine = file.parent.name
        assert file in answers(engine) or file.stem in asked or (engine, file.stem) in NOT_THERE, file


def test_the_log_of_the_crash_names_nan() -> None:
    log = (DATA / "sglang0523-nan-crash.log").read_text()
    assert any(host.NAN_LINES.search(line) for line in log.splitlines())
    assert classify(log, "", {}).page == "nan-output"


def test_what_a_server_says_once_in_its_life_counts_also_later(tmp_path: Path) -> None:
    """SGLang's sanitiser warns once; its older detector with each request, and then only new lines count."""
    log = tmp_path / "log"
    log.write_text("Detected errors during sampling! NaN in the logits.\nready\n")
    seen = host.Log(log)
    assert seen.nan_line() is None
    log.write_text("NaN detected in logits; values were sanitized before sampling.\n" + log.read_text())
    assert "sanitized" in (host.Log(log).nan_line() or "")
    assert host.Log(None).nan_line() is None
