"""A terminal after a Ctrl-C is what it was before: what is typed next can be seen."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.served

ROOT = Path(__file__).parents[2]
INVOKE = str(Path(sys.executable).with_name("invoke"))


def _echoes(terminal: int) -> bool:
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


@pytest.mark.parametrize("words", [["status"], ["provision", "--check"], ["provision", "--yes"]])
def test_after_ctrl_c_at_the_question_for_a_password(words: list[str], tmp_path: Path) -> None:
    """It is asked in a thread of its host, which nobody waits for any more."""
    inventory = tmp_path / "inventory.yaml"
    text = (ROOT / "inventory.yaml").read_text()
    inventory.write_text(text.replace("    # sudo: password", "    sudo: password", 1))
    master, slave = pty.openpty()
    argv = ["setsid", "--ctty", "--wait", INVOKE, *words, "--inventory", str(inventory)]
    try:
        assert _echoes(slave)
        with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT) as process:
            said, asked_without = b"", False
            deadline, typed = time.monotonic() + 50, 0.0
            while process.poll() is None:
                assert time.monotonic() < deadline, said
                if select.select([master], [], [], 0.1)[0]:
                    said += os.read(master, 65536)
                if b"sudo password" in said and not _echoes(slave) and time.monotonic() > typed + 1:
                    asked_without, typed = True, time.monotonic()
                    os.write(master, b"\x03")
        assert asked_without
        assert process.returncode == 130, said
        assert _echoes(slave), "blind from now on"
        while select.select([master], [], [], 0.1)[0]:
            said += os.read(master, 65536)
        assert b"\n\x1b[1;31minterrupted" in said
    finally:
        os.close(master)
        os.close(slave)
