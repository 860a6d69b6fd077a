"""The depot without guests: what is built when, the signed repository, the index pages, resumed downloads."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.depot import apt
from lab.depot.part import Part
from lab.depot.serve import server
from lab.depot.signing import Key
from lab.standins.driver.packages import DRIVERS, packages
from lab.standins.flash_attn import build_sdist
from lab.standins.torch import build_wheel
from runbooks.engine.errors import UsageError

needs_gpg = pytest.mark.skipif(not shutil.which("gpg") or not shutil.which("dpkg-deb"), reason="needs gpg and dpkg-deb")


def quiet(_text: str) -> None:
    pass


# -- parts -----------------------------------------------------------------------------------------------------------


def test_a_part_is_built_again_only_when_its_sources_change(tmp_path: Path) -> None:
    source = tmp_path / "sources/text"
    source.parent.mkdir()
    source.write_text("one")
    built: list[str] = []

    def build(out: Path, _: object) -> None:
        built.append(source.read_text())
        (out / f"{source.read_text()}.txt").write_text("made")

    def ensure() -> list[str]:
        Part("text", "out", [source.parent], build).ensure(tmp_path / "root", quiet)
        return sorted(path.name for path in (tmp_path / "root/out").iterdir())

    (tmp_path / "root").mkdir()
    assert (ensure(), ensure(), built) == (["one.txt"], ["one.txt"], ["one"])
    source.write_text("two")
    assert (ensure(), built) == (["two.txt"], ["one", "two"])  # what it no longer makes is gone
    (tmp_path / "root/out/two.txt").unlink()
    assert (ensure(), built) == (["two.txt"], ["one", "two", "two"])


def test_a_part_that_fails_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    def build(out: Path, _: object) -> None:
        (out / "half.txt").write_text("")
        raise OSError("disk full")

    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            Part("text", "out", [], build).ensure(tmp_path, quiet)
    assert not list((tmp_path / "out").iterdir())


# -- apt -------------------------------------------------------------------------------------------------------------


@needs_gpg
def test_repository_is_signed_and_its_hashes_hold(tmp_path: Path) -> None:
    key = Key(tmp_path / "keys")
    key.ensure()
    before = key.public.read_bytes()
    key.ensure()
    assert key.public.read_bytes() == before  # one key for the life of the cache
    out = tmp_path / "apt"
    out.mkdir()
    wanted = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "cuda-keyring")
    table = [package for package in packages("6.1.0-test", key.public) if package.name in wanted]
    apt.build(table, key, out, quiet)

    keyring = ["--keyring", str(out / "lab-archive-keyring.gpg")]
    for signed in (["InRelease"], ["Release.gpg", "Release"]):
        argv = ["gpgv", *keyring, *(str(out / name) for name in signed)]
        subprocess.run(argv, check=True, capture_output=True)
    release = (out / "Release").read_text()
    assert "Origin: NVIDIA\nLabel: NVIDIA CUDA\n" in release
    for digest, size, name in re.findall(r"^ (\w{64}) (\d+) (\S+)$", release, re.MULTILINE):
        content = (out / name).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, int(size))
    index = gzip.decompress((out / "Packages.gz").read_bytes()).decode()
    assert index == (out / "Packages").read_text()
    stanzas = index.strip().split("\n\n")
    assert len(stanzas) == len(table) == 5
    for stanza in stanzas:
        deb = out / re.search(r"^Filename: (.*)$", stanza, re.MULTILINE)[1]  # type: ignore[index]
        assert hashlib.sha256(deb.read_bytes()).hexdigest() in stanza
        assert "lab stand-in" in stanza


@needs_gpg
def test_the_same_sources_give_the_same_packages(tmp_path: Path) -> None:
    key = Key(tmp_path / "keys")
    key.ensure()
    table = [package for package in packages("6.1.0-test", key.public) if package.name == "nvidia-persistenced"][:1]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        apt.build(table, key, tmp_path / folder, quiet)
    assert (tmp_path / "one/Packages").read_bytes() == (tmp_path / "two/Packages").read_bytes()


def test_every_dependency_on_the_lab_is_in_the_table() -> None:
    table = packages("6.1.0-test", Path("/keyring"))
    names = {package.name for package in table} | {name for package in table for name in package.provides}
    debian = {"dkms", "kmod", "python3", "build-essential"}
    for package in table:
        for relation in package.depends:
            alternatives = {alternative.split()[0] for alternative in relation.split("|")}
            assert alternatives & (names | debian), f"{package.name}: {relation}"
    assert {package.version for package in table if package.name == "nvidia-open"} == {f"{one}-1" for one in DRIVERS}


# -- the index -------------------------------------------------------------------------------------------------------


def test_builders_make_the_same_bytes_twice(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    for build in (build_sdist, build_wheel):
        assert build(tmp_path / "one").read_bytes() == build(tmp_path / "two").read_bytes()
    with zipfile.ZipFile(tmp_path / "one/torch-2.13.0-py3-none-any.whl") as wheel:
        assert b"lab stand-in" in wheel.read("torch-2.13.0.dist-info/METADATA")


def test_torch_stand_in_says_what_builds_ask(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    code = "import torch; print(torch.__version__, torch.version.cuda, torch._C._GLIBCXX_USE_CXX11_ABI, "
    code += "torch.cuda.is_available())"
    argv = [sys.executable, "-S", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(wheel), "PATH": ""})
    assert done.stdout.split() == ["2.13.0+cu130", "13.0", "True", "False"]


# -- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def depot(tmp_path: Path) -> Iterator[http.client.HTTPConnection]:
    for folder in ("apt", "simple", "models/m", ".keys"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("flash_attn-2.8.3.post2.tar.gz", "torch-2.13.0-py3-none-any.whl", "ninja-1.13.0-py3-none-any.whl"):
        (tmp_path / "simple" / name).write_bytes(b"x")
    (tmp_path / "models/m/weights").write_bytes(bytes(range(200)))
    (tmp_path / ".keys/secret.gpg").write_bytes(b"secret")
    running = server("127.0.0.1", 0, tmp_path)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", running.server_address[1], timeout=10)
    try:
        yield connection
    finally:
        connection.close()
        running.shutdown()
        thread.join()
        running.server_close()


def get(depot: http.client.HTTPConnection, path: str, **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
    depot.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = depot.getresponse()
    return answer.status, answer.read(), answer.headers


def links(page: bytes) -> list[str]:
    return re.findall(r'href="([^"]*)"', page.decode())


def test_pages_for_pip(depot: http.client.HTTPConnection) -> None:
    page = links(get(depot, "/simple/")[1])
    assert page[:3] == ["flash-attn/", "ninja/", "torch/"]
    assert "flash_attn-2.8.3.post2.tar.gz" in page  # the same page serves --find-links
    for name in ("flash-attn", "flash_attn", "Flash.Attn"):
        assert links(get(depot, f"/simple/{name}/")[1]) == ["../flash_attn-2.8.3.post2.tar.gz"]
    assert get(depot, "/simple/numpy/")[0] == 404


@pytest.mark.parametrize(
    ("asked", "status", "first", "length"),
    [
        ("bytes=0-", 200, 0, 200),
        ("bytes=150-", 206, 150, 50),
        ("bytes=10-19", 206, 10, 10),
        ("bytes=190-999", 206, 190, 10),
        ("bytes=-20", 206, 180, 20),
        ("bytes=200-", 416, 0, 0),
        ("bytes=1-2,5-6", 200, 0, 200),
        ("lines=1-2", 200, 0, 200),
    ],
)
def test_ranges(depot: http.client.HTTPConnection, asked: str, status: int, first: int, length: int) -> None:
    found, body, headers = get(depot, "/models/m/weights", Range=asked)
    assert (found, len(body)) == (status, length)
    assert body == bytes(range(200))[first : first + length]
    assert headers["Content-Range"] == {206: f"bytes {first}-{first + length - 1}/200", 416: "bytes */200"}.get(status)


def test_the_hub(depot: http.client.HTTPConnection, tmp_path: Path) -> None:
    """What huggingface_hub reads: a commit, the tree page by page, each file's commit and digest, its error codes."""
    files = {f"f{number}.json": b"{}" for number in range(5)} | {"m.safetensors": bytes(range(200))}
    for name, data in files.items():
        (tmp_path / "models/m" / name).write_bytes(data)
    listed = [{"path": k, "size": len(v), "sha256": hashlib.sha256(v).hexdigest()} for k, v in files.items()]
    (tmp_path / "models/m/manifest.json").write_text(json.dumps({"files": listed}))
    commit = json.loads(get(depot, "/api/models/lab/m/revision/main")[1])["sha"]
    status, first, headers = get(depot, f"/api/models/lab/m/tree/{commit}?recursive=true")
    following = re.match(r'<http://[^/]*(/[^>]*)>; rel="next"', headers["Link"])
    assert (status, len(json.loads(first)), following is not None) == (200, 5, True)
    assert following
    (last,) = json.loads(get(depot, following[1])[1])
    assert last["lfs"] == {"oid": listed[-1]["sha256"], "size": 200, "pointerSize": 134}
    status, body, headers = get(depot, f"/lab/m/resolve/{commit}/m.safetensors", Range="bytes=150-")
    assert (status, body) == (206, bytes(range(150, 200)))
    assert (headers["X-Repo-Commit"], headers["X-Linked-ETag"]) == (commit, f'"{listed[-1]["sha256"]}"')
    headers = get(depot, f"/lab/m/resolve/{commit}/f0.json")[2]
    assert headers["ETag"] == '"9e26dfeeb6e641a33dae4961196235bdb965b21b"'  # git hash-object of {}
    for path, code in (
        ("/api/models/gated/m/revision/main", "GatedRepo"),
        ("/api/models/lab/x/revision/main", "RepoNotFound"),
        ("/api/models/lab/m/revision/x", "RevisionNotFound"),
        (f"/lab/m/resolve/{commit}/x", "EntryNotFound"),
    ):
        assert get(depot, path)[2]["X-Error-Code"] == code
    assert get(depot, "/api/models/gated/m/revision/main", Authorization="Bearer hf_lab")[0] == 200


def test_a_range_of_a_file_that_changed_is_the_whole_file(depot: http.client.HTTPConnection) -> None:
    _, _, headers = get(depot, "/models/m/weights")
    assert get(depot, "/models/m/weights", Range="bytes=150-", If_Range=headers["ETag"])[0] == 206
    assert get(depot, "/models/m/weights", Range="bytes=150-", If_Range='"old"')[0] == 200
    assert get(depot, "/models/m/weights", If_None_Match=headers["ETag"])[:2] == (304, b"")


@pytest.mark.parametrize(
    "path", ["/.keys/secret.gpg", "/apt/../.keys/secret.gpg", "/apt/%2e%2e/.keys/secret.gpg", "/x"]
)
def test_nothing_else_is_served(depot: http.client.HTTPConnection, path: str) -> None:
    assert get(depot, path)[0] == 404


def test_apt_asks_with_odd_slashes(depot: http.client.HTTPConnection) -> None:
    assert get(depot, "//models/.//m/weights")[0] == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "8.8.8.8"])
def test_only_loopback_and_private_addresses(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError, match="neither a loopback nor a private"):
        server(address, 0, tmp_path)


def test_it_ends_on_sigterm(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "lab.depot", "--port", "0", "--root", str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("depot: http://127.0.0.1:")
        process.terminate()
        assert process.wait(10) == 0
