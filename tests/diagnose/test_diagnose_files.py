"""What people hand to `invoke diagnose`: packed, cut off, binary, endless, empty, or a pipe."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from runbooks.diagnose.classify import classify, rank
from runbooks.diagnose.sources import LARGEST, from_file
from runbooks.engine.errors import UsageError

LINE = "2026-11-29T10:00:00+0000 h sglang[1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
LOG = "2026-11-29T09:00:00+0000 h sglang[1]: hello\n" * 50 + LINE


def cause(path: Path) -> str:
    return classify(from_file(str(path)).journal).name


@pytest.fixture
def archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("../../journal.log")
        member.size = len(LOG)
        tar.addfile(member, io.BytesIO(LOG.encode()))
    return packed.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        LOG.encode(),
        gzip.compress(LOG.encode()),
        bz2.compress(LOG.encode()),
        lzma.compress(LOG.encode()),
        LOG.encode("utf-16"),
        bytes(1_000_000) + LOG.encode(),
        b"a\xffb\n" + LOG.encode(),
    ],
    ids=["plain", "gzip", "bzip2", "xz", "UTF-16", "zero bytes of a crash", "a byte that is no text"],
)
def test_a_log_is_read_however_it_lies_there(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "log").write_bytes(data)
    assert cause(tmp_path / "log") == classify(LOG).name != "nothing"


def test_a_pipe_is_read_once(tmp_path: Path, archive: bytes) -> None:
    """`invoke diagnose <(ssh host journalctl)`: nothing of it may be lost to a look at what it is."""
    for data in (LINE.encode(), gzip.compress(LOG.encode()), archive):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(data,))
        writer.start()
        assert cause(pipe) == classify(LOG).name
        writer.join()
        pipe.unlink()


def test_an_archive_is_read_and_a_damaged_one_refused(tmp_path: Path, archive: bytes) -> None:
    (tmp_path / "a").write_bytes(archive)
    assert cause(tmp_path / "a") == classify(LOG).name
    plain = gzip.decompress(archive)
    packed = gzip.compress(os.urandom(5000).hex().encode())
    for cut in (archive[: len(archive) // 2], plain[:700], packed[:-2000], packed[:5000] + b"x" * 200 + packed[5200:]):
        (tmp_path / "a").write_bytes(cut)
        with pytest.raises(UsageError, match=r"cannot read .*: "):
            from_file(str(tmp_path / "a"))


@pytest.mark.parametrize(
    "data", [b"", b" \n\n", bytes(5000), os.urandom(100_000), b"\x7fELF\x02\x01" + os.urandom(5000)]
)
def test_what_says_nothing_is_not_called_healthy(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    for path in (tmp_path / "x", tmp_path):
        with pytest.raises(UsageError, match=r"is empty|holds no text"):
            from_file(str(path))


def test_a_closed_stdin_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="what was piped in is empty"):
        from_file("-")


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(20 * LARGEST)  # holes: they cost no disk, and reading them would cost a gigabyte
        file.seek(0, io.SEEK_END)
        file.write(LOG.encode())
    assert cause(tmp_path / "log") == classify(LOG).name


def test_hours_of_serving_take_a_second() -> None:
    """Lines that differ in their numbers alone are asked some hundred times, not each."""
    line = (
        "2026-11-29T10:00:00+0000 h sglang[1]: [2026-11-29 10:00:00 TP0] Decode batch, #running-req: {}, #token: {}\n"
    )
    hours = "".join(line.format(number % 64, number) for number in range(15_000))
    began = time.process_time()
    assert rank(hours + LINE)[0].name == classify(LOG).name
    assert rank(LINE + hours)[0].name == classify(LOG).name
    assert time.process_time() - began < 4  # without it 15 s
