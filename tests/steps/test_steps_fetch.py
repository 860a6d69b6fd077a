"""The downloader against a real HTTP server that behaves badly."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from runbooks.engine.artefact import build_zipapp
from runbooks.engine.step import Change
from runbooks.steps.checks import free_space
from runbooks.steps.downloads import FETCH, Download

pytestmark = pytest.mark.served

HEADER = b'{"w":{"dtype":"U8","shape":[2304000],"data_offsets":[0,2304000]}}'

FILES = {
    "config.json": b'{"model_type": "glm_moe_dsa"}\n',
    "model-00001.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + bytes(range(256)) * 9000,
    "sub folder/tök 'n'.json": b"{}",
    "empty": b"",
}


class Depot(ThreadingHTTPServer):
    """A manifest folder and a hub; `cut` maps a path to how many bytes of it are sent before the line drops, once."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        self.cut: dict[str, int] = {}
        self.token: str | None = None
        self.ranges = True
        self.log: list[tuple[str, str | None, str | None]] = []
        self.manifest: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Depot

    def log_message(self, *_args: Any) -> None:
        pass

    def do_GET(self) -> None:
        from urllib.parse import unquote

        depot, path = self.server, unquote(self.path)
        depot.log.append((path, self.headers.get("Range"), self.headers.get("Authorization")))
        if depot.token and self.headers.get("Authorization") != f"Bearer {depot.token}":
            self.send_error(401)
        elif path == "/m/manifest.json":
            entries = [
                {"path": name, "size": len(data), "sha256": hashlib.sha256(FILES.get(name, data)).hexdigest()}
                for name, data in depot.files.items()
            ]
            self._send(depot.manifest or json.dumps({"files": entries}).encode())
        elif path == "/api/models/o/n/revision/v1":
            self._send(json.dumps({"sha": "v1"}).encode())
        elif path.startswith("/api/models/o/n/tree/v1"):
            self._tree(path)
        else:
            self._file(path.removeprefix("/m/"))

    def _tree(self, path: str) -> None:
        names = sorted(self.server.files)
        half = names[2:] if "page=2" in path else names[:2]
        entries: list[dict[str, Any]] = [{"type": "directory", "path": "sub folder"}]
        for name in half:
            data = self.server.files[name]
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data)}
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if name.endswith(".safetensors"):
                entry |= {"size": 135, "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}}
            entries.append(entry)
        headers = {} if "page=2" in path else {"Link": '</api/models/o/n/tree/v1?page=2>; rel="next"'}
        self._send(json.dumps(entries).encode(), headers)

    def _file(self, name: str) -> None:
        data = self.server.files.get(name)
        if data is None:
            self.send_error(404)
            return
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(match[1]) if match and self.server.ranges else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start : start + self.server.cut.pop(name, len(data))])

    def _send(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(200)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def depot() -> Iterator[Depot]:
    with Depot() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fetch") / "fetch.pyz"
    path.write_bytes(build_zipapp(FETCH, "main:main"))
    return path


def fetch(
    zipapp: Path, source: str, into: Path, *more: str, hub: str = "", path: str = "/usr/bin:/bin"
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(zipapp), "--source", source, "--into", str(into), "--identity", f"{source} main", *more]
    env = {"HF_ENDPOINT": hub, "PATH": path, "LC_ALL": "C.UTF-8", "no_proxy": "*"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=60)


def assert_whole(folder: Path) -> None:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {name: data for name, data in found.items() if not name.startswith(".runbooks/")} == FILES
    assert not [name for name in found if name.startswith(".runbooks/part/")]


def look(step: Download, host: Any) -> Any:
    return step.plan(host.ask(step.questions()))


def test_a_folder_with_a_manifest(depot: Depot, zipapp: Path, tmp_path: Path, host: Any) -> None:
    into, source = tmp_path / "it's here", f"{depot.url}/m/"
    step = Download(source=source, path=str(into), size=2.3e6)
    host.converge(step)
    assert_whole(into)
    assert host.ask([free_space(str(into / "x"))])

    (into / "config.json").unlink()
    depot.log.clear()
    change = host.converge(step)
    assert "what is missing comes" in change.diff[1].line
    assert [path for path, _, _ in depot.log] == ["/m/manifest.json", "/m/config.json"]

    with (into / "model-00001.safetensors").open("r+b") as shard:
        shard.truncate(100)  # cut short, as an interrupted copy leaves it
    depot.log.clear()
    host.converge(step)
    assert [path for path, _, _ in depot.log] == ["/m/manifest.json", "/m/model-00001.safetensors"]
    assert_whole(into)

    weights, kept = into / "model-00001.safetensors", (into / "model-00001.safetensors").stat()
    weights.write_bytes(b"x" * kept.st_size)  # other bytes of the same size, seen by their time
    os.utime(weights, (kept.st_atime, kept.st_mtime + 5))
    assert isinstance(look(step, host), Change)
    host.converge(step)
    assert_whole(into)

    kept = weights.stat()
    weights.write_bytes(b"x" * kept.st_size)
    os.utime(weights, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert look(step, host) is None, "nothing shows it"
    for mark in ("identity", "verified.json"):  # as the page has it
        (into / ".runbooks" / mark).unlink()
    host.converge(step)
    assert_whole(into)


def test_a_line_that_drops_is_resumed(depot: Depot, zipapp: Path, tmp_path: Path) -> None:
    depot.cut["model-00001.safetensors"] = 1_000_000
    done = fetch(zipapp, f"{depot.url}/m", tmp_path / "m")
    assert done.returncode == 0, done.stdout
    assert ("/m/model-00001.safetensors", "bytes=1000000-", None) in depot.log
    assert_whole(tmp_path / "m")


def test_a_killed_download_goes_on_where_it_was(depot: Depot, zipapp: Path, tmp_path: Path) -> None:
    part = tmp_path / "m" / ".runbooks" / "part"
    part.mkdir(parents=True)
    (part / "model-00001.safetensors").write_bytes(FILES["model-00001.safetensors"][:2_000_000])
    assert fetch(zipapp, f"{depot.url}/m", tmp_path / "m").returncode == 0
    assert ("/m/model-00001.safetensors", "bytes=2000000-", None) in depot.log
    assert_whole(tmp_path / "m")


def test_a_server_without_ranges_sends_the_whole_again(depot: Depot, zipapp: Path, tmp_path: Path) -> None:
    depot.ranges = False
    depot.cut["model-00001.safetensors"] = 1_000_000
    assert fetch(zipapp, f"{depot.url}/m", tmp_path / "m").returncode == 0
    assert_whole(tmp_path / "m")


def test_a_file_that_is_there_is_checked_and_a_wrong_one_replaced(depot: Depot, zipapp: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_bytes(FILES["config.json"])
    (tmp_path / "m" / "model-00001.safetensors").write_bytes(b"\0" * len(FILES["model-00001.safetensors"]))
    done = fetch(zipapp, f"{depot.url}/m", tmp_path / "m")
    assert "model-00001.safetensors: its digest is wrong, it comes again" in done.stdout
    assert "/m/config.json" not in [path for path, _, _ in depot.log]
    assert_whole(tmp_path / "m")


HF = f"""\
#!{sys.executable}
import os, pathlib, shutil, sys, time
source, notes = pathlib.Path({{source!r}}), pathlib.Path({{notes!r}})
with notes.open("a") as log: print(*sys.argv[1:], "|", pathlib.Path(os.environ["HF_TOKEN_PATH"]).read_text(), file=log)
into = pathlib.Path(sys.argv[sys.argv.index("--local-dir") + 1])
part = into / ".cache/huggingface/download/x.0a1b2c3d.incomplete"
assert not part.exists(), "left by a download that was killed"
part.parent.mkdir(parents=True, exist_ok=True)
for name in sys.argv[sys.argv.index("--") + 1:]:
    if not (source / name).exists(): sys.exit({{said!r}})
    (into / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / name, part)
    part.rename(into / name)
"""
"""Plays `hf download` in its words, its folders and its environment. The real one: tests/provision, in the lab."""


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(data)
    said = "Error: 403 Forbidden: accept its licence"
    words = {"source": str(tmp_path / "source"), "notes": str(tmp_path / "asked"), "said": said}
    (tmp_path / "hf").write_text(HF.format(**words))
    (tmp_path / "hf").chmod(0o755)
    return tmp_path / "hf"


def test_the_hub_by_its_cli(depot: Depot, zipapp: Path, tmp_path: Path, hf: Path) -> None:
    """Two pages of the tree; the token in a file; a dead part is cleared away, and what is there is kept."""
    depot.token = "hf_s3ntinel"
    token = tmp_path / "token"
    token.write_text("hf_s3ntinel\n")
    left = tmp_path / "m/.cache/huggingface/download/x.0a1b2c3d.incomplete"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    (tmp_path / "m/config.json").write_bytes(FILES["config.json"])
    more = ("--revision", "v1", "--token-file", str(token), "--hf", "/nowhere/hf", "--hf", str(hf))
    done = fetch(zipapp, "hf:o/n", tmp_path / "m", *more, hub=depot.url)
    assert done.returncode == 0, done.stdout
    assert "s3ntinel" not in done.stdout + done.stderr
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith(f"download o/n --revision v1 --local-dir {tmp_path}/m -- empty model-00001.safetensors sub")
    assert asked.partition("|")[2].strip() == "hf_s3ntinel"
    shutil.rmtree(tmp_path / "m/.cache")
    assert_whole(tmp_path / "m")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("rm source/empty", "fetch: hf download: Error: 403 Forbidden: accept its licence; 3 files are not there"),
        ("echo other >source/empty", "its digest is wrong, twice"),
        ("rm hf", "the Hugging Face CLI is not there (/opt/r): invoke provision --tags runtime,model"),
    ],
)
def test_a_hub_that_does_not_give_it(
    depot: Depot, zipapp: Path, tmp_path: Path, hf: Path, damage: str, said: str
) -> None:
    subprocess.run(damage, shell=True, cwd=tmp_path, check=True)
    places = ("--hf", str(hf)) if hf.exists() else ("--hf", "/opt/r/venv/bin/hf")
    done = fetch(zipapp, "hf:o/n", tmp_path / "m", "--revision", "v1", *places, hub=depot.url)
    assert done.returncode == 1
    assert said in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "m/.runbooks/identity").exists()


@pytest.mark.parametrize(("says", "ends"), [("Disk quota exceeded", 1), ("Operation not supported", 0)])
def test_room_is_asked_of_the_kernel_itself(depot: Depot, zipapp: Path, tmp_path: Path, says: str, ends: int) -> None:
    """statvfs knows no quota. A file system that cannot set bytes aside is believed."""
    tool = tmp_path / "bin/fallocate"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho $* >{tmp_path}/asked\necho 'fallocate: fallocate failed: {says}' >&2\nexit 1\n")
    tool.chmod(0o755)
    done = fetch(zipapp, f"{depot.url}/m", tmp_path / "m", path=f"{tool.parent}:/usr/bin:/bin")
    assert done.returncode == ends, done.stdout
    assert f"--length {sum(map(len, FILES.values()))} " in (tmp_path / "asked").read_text()
    assert ("does not take them: Disk quota exceeded" in done.stdout) == bool(ends)
    assert not list((tmp_path / "m/.runbooks").glob("room-*"))


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (b"<html>", "is not a manifest"),
        (b'{"files": []}', "lists no file"),
        (b'{"files": [{"path": "../x", "size": 1}]}', "a file outside its folder: '../x'"),
        (b'{"files": [{"path": "/etc/passwd", "size": 1}]}', "a file outside its folder"),
        (b'{"files": [{"path": "x", "size": 900000000000000000}]}', "GB are still to come"),
        (b'{"files": [{"path": "x", "size": 1}]}', "there is no such thing (404)"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    depot: Depot, zipapp: Path, tmp_path: Path, manifest: bytes, said: str
) -> None:
    depot.manifest = manifest
    done = fetch(zipapp, f"{depot.url}/m", tmp_path / "m")
    assert done.returncode == 1
    assert said in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout + done.stderr


def test_refusals(depot: Depot, zipapp: Path, tmp_path: Path) -> None:
    depot.token = "x"
    done = fetch(zipapp, f"{depot.url}/m", tmp_path / "m")
    assert done.returncode == 1
    assert "it wants a token" in done.stdout
    done = fetch(zipapp, "http://127.0.0.1:1/m", tmp_path / "m")
    assert done.returncode == 1
    assert "refused" in done.stdout.lower()
    assert "Traceback" not in done.stderr


def shard(data: bytes, *, says: int | None = None) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, says or len(data)]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (
            "a.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "is a Git LFS pointer of",
        ),
        ("a.safetensors", b"<html>not found</html>", "has no safetensors header"),  # HeaderTooLarge, to a loader
        ("a.safetensors", b"abc", "has 3 bytes, too few for a header"),
        ("a.safetensors", b"\x04\0\0\0\0\0\0\0{{{{", "has a damaged safetensors header"),
        ("a.safetensors", shard(b"x" * 10, says=20), "it is cut off"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"w": "b.safetensors"}}',
            "the source does not have: b.safetensors",
        ),
    ],
)
def test_weights_that_are_none(depot: Depot, zipapp: Path, tmp_path: Path, name: str, data: bytes, said: str) -> None:
    """What the source has is what came, digest and all: only its content says that it is no model."""
    depot.files = {"config.json": b"{}", name: data}
    depot.manifest = manifest(depot.files)
    done = fetch(zipapp, f"{depot.url}/m", tmp_path / "m")
    assert done.returncode == 1
    assert said in done.stdout
    assert not (tmp_path / "m/.runbooks/identity").exists()


def manifest(files: dict[str, bytes]) -> bytes:
    entries = [{"path": k, "size": len(v), "sha256": hashlib.sha256(v).hexdigest()} for k, v in files.items()]
    return json.dumps({"files": entries}).encode()


def test_a_folder_of_the_host(zipapp: Path, tmp_path: Path) -> None:
    """As a mount; resumed as anything else, and held to the manifest where there is one."""
    source, into = tmp_path / "mount", tmp_path / "m"
    (source / "sub").mkdir(parents=True)
    (source / ".git").mkdir()
    (source / ".git/x").write_text("no")
    (source / "sub/a.json").write_text("{}")
    (source / "w.safetensors").write_bytes(shard(b"y" * 100_000))
    (into / ".runbooks/part").mkdir(parents=True)
    (into / ".runbooks/part/w.safetensors").write_bytes((source / "w.safetensors").read_bytes()[:40_000])
    assert fetch(zipapp, str(source), into).returncode == 0
    assert (into / "w.safetensors").read_bytes() == (source / "w.safetensors").read_bytes()
    assert (into / "sub/a.json").exists()
    assert not (into / ".git").exists()
    assert "no such folder" in fetch(zipapp, str(tmp_path / "gone"), into).stdout
