"""Whether a model is whole, asked of a real folder by the script of the look."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from runbooks.deploy.look import MISSING, ROOM, WRITTEN, look, read
from runbooks.engine.look import AT_MOST
from runbooks.engine.step import quote
from tests.deploy.deploy_fake import FakeHost

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a model's folder"
    folder.mkdir()
    index = {"weight_map": {f"model.layers.{number}.w": shard for number, shard in enumerate(SHARDS * 3)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text("{}")
    for shard in SHARDS:
        (folder / shard).write_bytes(b"weights")
    return folder


def _fetched(model: Path) -> None:
    """As `invoke provision` leaves it."""
    (model / ".runbooks").mkdir()
    names = ["config.json", *SHARDS]
    (model / ".runbooks/files").write_bytes(b"".join(name.encode() + b"\0" for name in names))
    (model / ".runbooks/sizes").write_text("".join(f"{(model / name).stat().st_size} {name}\n" for name in names))


def _missing(model: Path) -> list[str]:
    script = MISSING.format(model=quote(str(model)))
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False).stdout.splitlines()


@pytest.mark.parametrize("compact", [False, True])
def test_a_model_brought_by_hand_has_what_its_index_names(model: Path, compact: bool) -> None:
    if compact:
        index = json.loads((model / "model.safetensors.index.json").read_text())
        (model / "model.safetensors.index.json").write_text(json.dumps(index, separators=(",", ":")))
    assert _missing(model) == []
    (model / SHARDS[1]).unlink()
    (model / SHARDS[2]).write_bytes(b"")
    assert _missing(model) == SHARDS[1:]


def test_one_that_was_fetched_has_every_file_in_its_length(model: Path) -> None:
    _fetched(model)
    assert _missing(model) == []
    (model / SHARDS[0]).write_bytes(b"weigh")
    (model / "config.json").unlink()
    assert _missing(model) == ["config.json", SHARDS[0]]


def test_one_that_is_still_coming_is_not_whole(model: Path) -> None:
    (model / ".runbooks").mkdir()
    assert _missing(model) == ["its download has not come to its end"]


def test_no_folder_and_a_single_file_are_not_called_cut_off(model: Path, tmp_path: Path) -> None:
    assert _missing(tmp_path / "none") == []
    (model / "model.safetensors.index.json").unlink()
    assert _missing(model) == []


def test_the_room_is_asked_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    host = FakeHost()
    look(host.conn, runtimes=["/r"], model_path="/m", user="nobody", port=1, key=None)
    (script,) = host.asked
    part = script.partition("-- rb: room'\n")[2].partition("echo '-- rb: key'")[0]
    assert all(path in part for path in WRITTEN)
    here = AT_MOST + part.replace(WRITTEN[0], str(tmp_path / "not/there/yet"))
    lines = subprocess.run(["sh", "-c", here], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines
    for line in lines:
        avail, _, _, mount = line.split(maxsplit=3)
        assert int(avail) >= 0
        assert Path(mount).is_mount()
    assert read("\n".join(["-- rb: room", "1 0 - /a b", f"{ROOM:.0f} 0 - /c"])).full == (
        "/a b: 0 MB free, 200 MB needed",
    )
