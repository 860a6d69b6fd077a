"""Where secrets come from: what is no secret is refused, in words that do not show it, and without waiting."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from runbooks.engine import secret
from runbooks.engine.errors import UsageError
from runbooks.engine.secret import SecretSource

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----"


def source(tmp_path: Path, content: bytes, *, ascii: bool = False) -> SecretSource:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    return SecretSource(file="secret", base=tmp_path, ascii=ascii)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\r\n", "is empty"),
        (b"abc", "shorter than 4"),
        (b"\xff\xfe\x00secret", "not UTF-8"),
        (b"two-5ecret\nlines", "not one line"),
        (b"nul-5ecret\0", "not one line"),
        (b"esc-5ecret\x1b[31m", "not one line"),
        (b"5ecret" * 20_000, "that is no secret"),
    ],
)
def test_what_is_no_secret_is_refused_without_showing_it(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        source(tmp_path, content).resolve()
    assert "5ecret" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("content", ["pa\u00dfwort", "pass word", KEY, KEY.replace("\n", "\r\n")])
def test_what_people_have_is_taken(tmp_path: Path, content: str) -> None:
    found = source(tmp_path, f"{content}\n".encode()).resolve()
    assert found.reveal() == content.replace("\r\n", "\n").rstrip("\n")


@pytest.mark.parametrize("content", ["sk-pa\u00df", "Bearer sk-1"])
def test_a_key_for_a_header_is_ascii(tmp_path: Path, content: str) -> None:
    with pytest.raises(UsageError, match="is sent in a header"):
        source(tmp_path, content.encode(), ascii=True).resolve()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("pipe", "folder"):
        with pytest.raises(UsageError, match="is no file"):
            SecretSource(file=name, base=tmp_path).resolve()


@pytest.mark.parametrize("value", ["", "abc", "a\nb-secret", "\udcff-secret"])
def test_a_variable_is_judged_alike(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("RUNBOOKS_TEST_SECRET", value)
    with pytest.raises(UsageError, match="the environment variable RUNBOOKS_TEST_SECRET"):
        SecretSource(env="RUNBOOKS_TEST_SECRET").resolve()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "sh ended with 3: it said nothing"),
        ("echo half-5ecret; echo no >&2; exit 3", "sh ended with 3: no"),
        ("printf '\\033[31mno' >&2; exit 3", r"\\x1b\[31mno"),
        ("printf '\\377 5ecret'", "printed is not UTF-8"),
        (":", "printed is empty"),
    ],
)
def test_a_command_that_gives_none(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        SecretSource(command=("sh", "-c", script), base=tmp_path).resolve()
    assert "5ecret" not in str(refused.value)


def test_a_command_stands_beside_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "ask").write_text("#!/bin/sh\necho secret-1\n")
    (tmp_path / "ask").chmod(0o755)
    assert SecretSource(command=("./ask",), base=tmp_path).resolve().reveal() == "secret-1"
    with pytest.raises(UsageError, match="could not be run: No such file"):
        SecretSource(command=("./none",), base=tmp_path).resolve()


def test_a_command_that_hangs_is_left_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(secret, "PATIENCE", 0.3)
    began = time.monotonic()
    for script in ("sleep 5", "sleep 5 & sleep 5", "echo secret-1; sleep 5 &"):
        with pytest.raises(UsageError, match="did not end within"):
            SecretSource(command=("sh", "-c", script), base=tmp_path).resolve()
    assert time.monotonic() - began < 4
