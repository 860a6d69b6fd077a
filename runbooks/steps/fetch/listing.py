"""What there is to fetch: path, size and digest of each file."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from . import remote

TIMEOUT = 60  # seconds without a byte


class FetchError(Exception):
    """One line for the person who has to act on it."""


@dataclass(frozen=True)
class RemoteFile:
    """`digest` is ("sha256", hex), or ("git", hex) for a small file that the hub names by git's blob hash.

    `url` is empty for a file of the hub.
    """

    path: str
    size: int
    digest: tuple[str, str] | None
    url: str

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if self.path.startswith("/") or any(part in ("", ".", "..") for part in parts) or parts[0] == ".runbooks":
            raise FetchError(f"the source names a file outside its folder: {self.path!r}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """The token is for the hub, never for the storage host that it redirects to."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            new.headers.pop("Authorization", None)
            new.unredirected_hdrs.pop("Authorization", None)
        return new


_OPENER = urllib.request.build_opener(_Redirects)


def open_url(url: str, token: str | None, headers: dict[str, str] | None = None):  # type: ignore[no-untyped-def]
    """The response, opened. Raises FetchError for what trying again cannot mend."""
    if url.startswith("ssh:"):
        return remote.Stream(url, int((headers or {}).get("Range", "bytes=0-")[6:-1]))
    request = urllib.request.Request(url, headers={"User-Agent": "runbooks-fetch", **(headers or {})})
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        return _OPENER.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            what = (
                "the token does not open it" if token else "it wants a token (`token:` of the model in the inventory)"
            )
            raise FetchError(f"{url}: refused ({error.code}); {what}, or its licence is not accepted yet") from None
        if error.code in (404, 410):
            raise FetchError(f"{url}: there is no such thing ({error.code})") from None
        raise


def list_files(source: str, revision: str, token: str | None) -> list[RemoteFile]:
    if source.startswith("hf:"):
        return _hub(source.removeprefix("hf:"), revision, token)
    if source.startswith("/"):
        return _folder(Path(source))
    if source.startswith("ssh:"):
        base = source.rstrip("/")
        found = remote.entries(base)
        return [RemoteFile(path, size, digest, f"{base}/{urllib.parse.quote(path)}") for path, size, digest in found]
    return _manifest(source.rstrip("/"), token)


def resolve(source: str, revision: str, token: str | None) -> str:
    """The commit that a branch or tag of the hub stands for now, so that all files are of one; "" for others."""
    if not source.startswith("hf:") or re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision if source.startswith("hf:") else ""
    name, at = urllib.parse.quote(source.removeprefix("hf:")), urllib.parse.quote(revision, safe="")
    with open_url(f"{_endpoint()}/api/models/{name}/revision/{at}", token) as response:
        return str(json.load(response).get("sha") or revision)


def _folder(source: Path) -> list[RemoteFile]:
    """A folder of this host, a mount for instance. With a manifest.json its digests count, else the sizes."""
    if not source.is_dir():
        raise FetchError(f"{source}: there is no such folder on this host")
    digests = {}
    if (source / "manifest.json").exists():
        entries = json.loads((source / "manifest.json").read_text())["files"]
        digests = {entry["path"]: ("sha256", entry["sha256"]) for entry in entries if entry.get("sha256")}
    files = []
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and name.parts[0] not in (".git", ".cache", ".runbooks", "manifest.json"):
            size = path.stat().st_size
            files.append(RemoteFile(str(name), size, digests.get(str(name)), path.resolve().as_uri()))
    return files


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _manifest(base: str, token: str | None) -> list[RemoteFile]:
    with open_url(f"{base}/manifest.json", token) as response:
        try:
            entries = json.load(response)["files"]
            return [
                RemoteFile(
                    entry["path"],
                    int(entry["size"]),
                    ("sha256", entry["sha256"]) if entry.get("sha256") else None,
                    f"{base}/{urllib.parse.quote(entry['path'])}",
                )
                for entry in entries
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise FetchError(f"{base}/manifest.json is not a manifest: {type(error).__name__} {error}") from None


def _hub(repository: str, revision: str, token: str | None) -> list[RemoteFile]:
    """The hub's tree, page by page: /api/models/ID/tree/REVISION. The files themselves come by its CLI, see hub.py."""
    name, at = urllib.parse.quote(repository), urllib.parse.quote(revision, safe="")
    page: str | None = f"{_endpoint()}/api/models/{name}/tree/{at}?recursive=true"
    files = []
    while page:
        with open_url(page, token) as response:
            entries = json.load(response)
            link = re.search(r'<([^>]+)>;\s*rel="next"', response.headers.get("Link") or "")
        page = urllib.parse.urljoin(page, link[1]) if link else None
        for entry in entries:
            if entry.get("type") == "file":
                lfs = entry.get("lfs")
                digest = ("sha256", lfs["oid"].removeprefix("sha256:")) if lfs else ("git", entry["oid"])
                files.append(RemoteFile(entry["path"], int(lfs["size"] if lfs else entry["size"]), digest, ""))
    return files
