"""A stand-in of the Hugging Face hub over the depot's model folders: what `hf download` asks for, and no more.

Sources: huggingface.co/docs/hub/api for the answers below /api/models, and huggingface_hub's reference of
`get_hf_file_metadata` for the headers of /OWNER/NAME/resolve. One commit a model, which `main` names as well. Weights
come from the hub itself, as from a mirror: the real one redirects to a storage host.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

OWNERS = {"lab": None, "gated": "hf_lab"}  # -> the token that opens its models
PAGE = 5  # files that the tree lists at once


@dataclass(frozen=True)
class Answer:
    """`file`: its content is the body."""

    status: HTTPStatus = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    file: Path | None = None


def answer(root: Path, parts: list[str], query: str, authorization: str, host: str) -> Answer | None:
    """What the hub says to this path; None where it is none of the hub's. `host`: where the depot was asked."""
    is_api = parts[:2] == ["api", "models"]
    owner, name, verb, revision, *rest = [*(parts[2:] if is_api else parts), "", "", "", ""]
    path = "/".join(filter(None, rest))
    if owner not in OWNERS or verb not in (("revision", "tree") if is_api else ("resolve",)):
        return None
    folder, token = root / "models" / name, OWNERS[owner]
    if token and authorization != f"Bearer {token}":
        return _error(HTTPStatus.UNAUTHORIZED, "GatedRepo", f"{owner}/{name} is a gated repository (lab stand-in)")
    if not (folder / "manifest.json").is_file():
        return _error(HTTPStatus.NOT_FOUND, "RepoNotFound", "no such repository in the lab's depot")
    manifest = (folder / "manifest.json").read_bytes()
    commit = hashlib.sha1(manifest).hexdigest()
    if revision not in ("main", commit):
        return _error(HTTPStatus.NOT_FOUND, "RevisionNotFound", f"the lab's depot has main and {commit}")
    entries = [_entry(folder, listed) for listed in json.loads(manifest)["files"]]
    if verb == "revision":
        about = {"_comment": "lab stand-in", "id": f"{owner}/{name}", "modelId": f"{owner}/{name}", "sha": commit}
        return _json({**about, "private": False, "siblings": [{"rfilename": entry["path"]} for entry in entries]})
    if verb == "tree":
        return _page(entries, query, f"http://{host}/{'/'.join(parts)}")
    return _resolve(folder, commit, next((entry for entry in entries if entry["path"] == path), None))


def _entry(folder: Path, listed: dict[str, Any]) -> dict[str, Any]:
    """A file as the tree lists it; `oid` of weights is that of their pointer, which nobody here looks at.

    The hub takes no file of more than 10 MB without LFS.
    """
    path, size = listed["path"], listed["size"]
    if path.endswith(".safetensors") or size > 10_000_000:
        lfs = {"oid": listed["sha256"], "size": size, "pointerSize": 134}
        return {"type": "file", "path": path, "size": size, "oid": listed["sha256"][:40], "lfs": lfs}
    blob = hashlib.sha1(b"blob %d\0" % size + (folder / path).read_bytes()).hexdigest()
    return {"type": "file", "path": path, "size": size, "oid": blob}


def _page(entries: list[dict[str, Any]], query: str, url: str) -> Answer:
    asked = parse_qs(query)
    begin = int(asked.pop("cursor", ["0"])[0])
    following = urlencode({**asked, "cursor": begin + PAGE}, doseq=True)
    link = {"Link": f'<{url}?{following}>; rel="next"'} if begin + PAGE < len(entries) else {}
    return _json(entries[begin : begin + PAGE], link)


def _resolve(folder: Path, commit: str, entry: dict[str, Any] | None) -> Answer:
    if entry is None:
        return _error(HTTPStatus.NOT_FOUND, "EntryNotFound", "no such file in this repository")
    headers = {"X-Repo-Commit": commit}
    if "lfs" in entry:
        headers |= {"X-Linked-ETag": f'"{entry["lfs"]["oid"]}"', "X-Linked-Size": str(entry["size"])}
    else:
        headers["ETag"] = f'"{entry["oid"]}"'
    return Answer(headers=headers, file=folder / entry["path"])


def _json(value: object, headers: dict[str, str] | None = None) -> Answer:
    return Answer(headers={"Content-Type": "application/json", **(headers or {})}, body=json.dumps(value).encode())


def _error(status: HTTPStatus, code: str, text: str) -> Answer:
    return Answer(status, {"X-Error-Code": code, "X-Error-Message": text})
