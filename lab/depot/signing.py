"""The key that the lab's apt repository is signed with: made once, kept below the depot's root, never served."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runbooks.engine.errors import RunbookError

OWNER = "runbooks lab, stand-in for NVIDIA's repository <lab@example.invalid>"


class Key:
    def __init__(self, folder: Path) -> None:
        self.secret = folder / "secret.gpg"
        self.public = folder / "lab-archive-keyring.gpg"  # binary, as apt's Signed-By wants it

    def ensure(self) -> None:
        if self.secret.exists() and self.public.exists():
            return
        self.secret.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _home() as home:
            _gpg(home, "--passphrase", "", "--quick-generate-key", OWNER, "ed25519", "sign", "never")
            self.public.write_bytes(_gpg(home, "--export"))
            self.secret.write_bytes(_gpg(home, "--passphrase", "", "--export-secret-keys"))
        self.secret.chmod(0o600)

    def sign(self, folder: Path) -> None:
        """Write InRelease and Release.gpg for the folder's Release."""
        with _home() as home:
            _gpg(home, "--import", str(self.secret))
            for option, name in (("--clear-sign", "InRelease"), ("--detach-sign", "Release.gpg")):
                armour = ["--armor"] if option == "--detach-sign" else []
                _gpg(
                    home,
                    *armour,
                    "--digest-algo",
                    "SHA512",
                    "--output",
                    str(folder / name),
                    option,
                    str(folder / "Release"),
                )


@contextmanager
def _home() -> Iterator[Path]:
    """A short path: gpg's agent listens on a socket in it, and socket paths end at 107 characters."""
    with tempfile.TemporaryDirectory(prefix="rb-gpg-", dir="/tmp") as home:
        try:
            yield Path(home)
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], capture_output=True, check=False)


def _gpg(home: Path, *arguments: str) -> bytes:
    argv = ["gpg", "--homedir", str(home), "--batch", "--yes", "--quiet", "--no-tty", "--pinentry-mode", "loopback"]
    done = subprocess.run([*argv, *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RunbookError("depot: gpg failed", details=done.stderr.decode(errors="replace").splitlines()[-5:])
    return done.stdout
