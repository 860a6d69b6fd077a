"""The ways of measuring: resumed, in an open loop, with drawn lengths, behind TLS, on an old Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from runbooks.bench.loadgen import rawlog
from runbooks.bench.loadgen.summary import point_of, points_of
from runbooks.engine.artefact import build_zipapp
from tests.bench.conftest import TRAPS
from tests.bench.generator import error_of, measured, words

pytestmark = pytest.mark.served


def test_a_sweep_that_broke_off_is_resumed(pyz: Path, traps: str, tmp_path: Path) -> None:
    sweep = ("--concurrency", "1,2,3", "--repeats", "2", "--split-test")
    with subprocess.Popen(words(pyz, traps, tmp_path, *sweep), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "point":
                break
        process.kill()  # as a host that goes down does: no run.json is written
    first = (tmp_path / "00-c1.bin").read_bytes()
    assert not (tmp_path / "run.json").exists()
    rc, events = measured(pyz, traps, tmp_path, *sweep, "--output-len", "16", "--resume")
    assert (rc, "other settings: lengths" in error_of(events)) == (2, True)
    rc, events = measured(pyz, traps, tmp_path, *sweep, "--resume")
    assert rc == 0
    told = [(event["concurrency"], event["resumed"]) for event in events if event["event"] == "point"]
    assert told[0] == (1, True)
    assert [streams for streams, _ in told] == [1, 2, 3, 3, 2, 1]  # and back again
    assert (tmp_path / "00-c1.bin").read_bytes() == first
    logs = sorted(tmp_path.glob("*.bin"))
    points = points_of((log.name, rawlog.decode(log.read_bytes())) for log in logs)
    assert [(point["concurrency"], len(point["repeats"])) for point in points] == [(1, 2), (2, 2), (3, 2)]
    assert points[2]["split"]["processes"] == [1, 2]  # the same load from one and from two
    assert points[2]["server"]["difference"] == 0.0
    rc, events = measured(pyz, traps, tmp_path, *sweep, "--resume")
    assert (rc, "no run that was broken off" in error_of(events)) == (2, True)


def test_an_open_loop_does_not_wait_for_the_server(pyz: Path, traps: str, tmp_path: Path) -> None:
    rc, _ = measured(pyz, traps, tmp_path, "--rate", "40", "--steady", "--window", "1.5", "--warmup", "0.5")
    assert rc == 0
    blocks = list(rawlog.decode((tmp_path / "00-r40.bin").read_bytes()))
    starts = sorted(meta["start"] for meta, _ in blocks if meta["kind"] == "request")
    assert {round((after - before) / 1e6, 3) for before, after in pairwise(starts)} == {25.0}  # ms, whatever it did
    assert all(meta["sent"] >= meta["start"] for meta, _ in blocks if meta["kind"] == "request")
    point = point_of(blocks)
    assert point["open"]["offered"] == 40
    assert point["requests"]["failed"] == 0
    assert abs(point["server"]["difference"]) < 0.01 or point["requests"]["cut"]


def test_drawn_lengths_and_a_shared_prefix(pyz: Path, traps: str, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.json"
    pairs.write_text("[[30, 20], [60, 40]]")
    assert measured(pyz, traps, tmp_path / "drawn", "--concurrency", "2", "--lengths", str(pairs))[0] == 0
    blocks = list(rawlog.decode((tmp_path / "drawn" / "00-c2.bin").read_bytes()))
    asked = {(meta["prompt"], meta["asked"]) for meta, _ in blocks if meta["kind"] == "request" and not meta["first"]}
    assert asked <= {(30, 20), (60, 40)}
    point = point_of(blocks)
    assert (point["tokens"]["prompt_off"], point["requests"]["failed"]) == (0, 0)
    more = ("--concurrency", "1", "--workload", "shared-prefix")
    assert measured(pyz, traps, tmp_path / "shared", *more)[0] == 0
    run = json.loads((tmp_path / "shared" / "run.json").read_text())
    assert (run["workload"], run["shared_len"], run["input_len"]) == ("shared-prefix", 30, 40)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The traps behind TLS, and the CA that signed their certificate: our own."""
    ca_key, ca, key, request, pem, both, san = (tmp_path / name for name in ("cak", "ca", "k", "csr", "pem", "b", "s"))
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj"]
    san.write_text("subjectAltName=IP:127.0.0.1")
    sign = ["openssl", "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "1"]
    for command in (
        [*new, "/CN=our own", "-x509", "-days", "1", "-keyout", ca_key, "-out", ca],
        [*new, "/CN=traps", "-keyout", key, "-out", request],
        [*sign, "-extfile", san, "-out", pem],
    ):
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
    both.write_text(key.read_text() + pem.read_text())
    server = [sys.executable, str(TRAPS), "--certificate", str(both)]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"https://127.0.0.1:{int(process.stdout.readline())}", ca
        finally:
            process.kill()


def test_tls_is_verified_and_the_key_goes_along(pyz: Path, secured: tuple[str, Path], tmp_path: Path) -> None:
    url, ca = secured
    trusting = {"SSL_CERT_FILE": str(ca), "RUNBOOKS_API_KEY": "sk-traps"}
    rc, events = measured(pyz, url, tmp_path / "a", RUNBOOKS_API_KEY="sk-traps")
    assert (rc, "its certificate: unable to get local issuer" in error_of(events)) == (1, True)
    assert "SSL_CERT_FILE" in error_of(events)
    rc, events = measured(pyz, url.replace("127.0.0.1", "localhost"), tmp_path / "b", **trusting)
    assert (rc, "not valid for 'localhost'" in error_of(events)) == (1, True)
    rc, events = measured(pyz, f"{url}/locked", tmp_path / "c", SSL_CERT_FILE=str(ca), RUNBOOKS_API_KEY="sk-wrong")
    assert (rc, "wants another API key" in error_of(events)) == (1, True)
    rc, events = measured(pyz, f"{url}/locked", tmp_path / "d", "--concurrency", "3", **trusting)
    assert rc == 0
    point = point_of(rawlog.decode((tmp_path / "d" / "00-c3.bin").read_bytes()))
    assert (point["requests"]["failed"], point["server"]["difference"]) == (0, 0.0)
    assert not [path for path in (tmp_path / "d").iterdir() if b"sk-traps" in path.read_bytes()]


@pytest.fixture
def oldest() -> str:
    """Where pyenv has one."""
    found = sorted(Path("~/.pyenv/versions").expanduser().glob("3.10.*/bin/python"))
    if not found:
        pytest.skip("no Python 3.10 here")
    return str(found[0])


def test_it_runs_by_itself_on_the_oldest_python(pyz: Path, traps: str, tmp_path: Path, oldest: str) -> None:
    command = words(pyz, traps, tmp_path, "--concurrency", "2", python=oldest)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "run.json").read_text())["python"].startswith("3.10.")


def test_what_is_pushed_beside_it_runs_there_too(tmp_path: Path, oldest: str) -> None:
    """The sampler to its end, the collectives as far as they come without torch: it is said, and no traceback."""
    for name in ("sampler", "collectives"):
        (tmp_path / f"{name}.pyz").write_bytes(build_zipapp(f"runbooks.bench.{name}", "cli:main"))
    command = [oldest, "-I", "sampler.pyz", "--out", "hardware.jsonl", "--beside", "999999999"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    command = [oldest, "-I", "collectives.pyz", "--batches", "1", "--limit", "20"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    result = json.loads(done.stdout.splitlines()[-1])["result"]
    assert result["ladder"]["word"] == "inconclusive"
    assert "No module named 'torch'" in result["errors"][0]["text"]
