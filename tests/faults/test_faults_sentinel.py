"""Three secrets go the whole road as people go it, and are then looked for on every surface that there is.

A sudo password, the model's token and the server's key: on the screen (a terminal, plain and JSON), in diffs, errors,
the report; on the host in whatever others can read, in the journal, in job logs and audit, and in what `ps` showed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from lab.guest import Guest
from lab.lab import Lab
from tests.faults.faults_world import make_pat
from tests.faults.terminal import INVOKE, on_a_terminal

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MARK = "s3ntinel-"
SUDO, TOKEN, KEY = f"{MARK}sudo'4711", f"{MARK}token-4712", f"{MARK}key-4713"

# As somebody who may only see what everybody sees, and as root, who sees every command line and environment.
WATCH = """\
watch() {
  loop="while :; do ps axwwe; cat /proc/*/cmdline /proc/*/environ; sleep 0.1; done"
  [ "$1" = nobody ] || loop="while :; do ps axww -o args; cat /proc/*/cmdline; sleep 0.05; done"
  systemd-run --quiet --collect --unit="watch-$1" --uid="$1" sh -c "$loop >/var/tmp/watched-by-$1 2>/dev/null"
}
watch root; watch nobody
"""
READABLE = "find / /run /tmp /dev/shm -xdev -type f -perm -o=r -size -200M -print0 | xargs -0 grep -laF {mark}; true"
EVERYWHERE = "grep -rlaF {mark} /etc /var /run /tmp /root /home /opt /srv /usr/local 2>/dev/null; true"


class Road:
    """What was typed, and everything that came back."""

    def __init__(self, guest: Guest, inventory: Path, out: Path) -> None:
        self.guest, self.out, self._inventory = guest, out, inventory
        self.said: dict[str, str] = {}

    def _argv(self, *words: str) -> list[str]:
        return [*INVOKE, *words, "--inventory", str(self._inventory), "--hosts", self.guest.name]

    def type(self, *words: str, terminal: bool = False, code: int | None = 0, **env: str) -> None:
        if terminal:
            said, found = on_a_terminal(self._argv(*words), seconds=900)
        else:
            done = subprocess.run(
                self._argv(*words),
                capture_output=True,
                text=True,
                check=False,
                timeout=900,
                stdin=subprocess.DEVNULL,
                env=os.environ | env,
            )
            said, found = done.stdout + done.stderr, done.returncode
        assert code is None or found == code, said[-3000:]
        self.said[f"{' '.join(words)} ({len(self.said)})"] = said


@pytest.fixture
def road(lab: Lab, guest: Guest, tmp_path: Path) -> Road:
    make_pat(guest, password=SUDO)
    for name, value in (("sudo", SUDO), ("key", KEY), ("token", TOKEN)):
        (tmp_path / name).write_text(value + "\n")
        (tmp_path / name).chmod(0o600)
    inventory = yaml.safe_load(lab.inventory.read_text())
    inventory["flash_attn"]["enabled"] = False
    inventory["hosts"][guest.name] |= {"user": "pat", "sudo": "password", "sudo_password": {"file": "sudo"}}
    inventory["server"]["api_key"] = {"file": "key"}
    inventory["models"]["glm-5-nvfp4"]["token"] = {"command": ["cat", str(tmp_path / "token")]}
    inventory["profiles"]["bad"] = {"extends": "final", "why": "does not start", "args": {"page_size": 64}}
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    return Road(guest, path, tmp_path / "results")


def test_no_secret_is_on_any_surface(road: Road) -> None:
    sh = road.guest.run
    sh(WATCH)
    road.type("provision", "--check", "--diff", "--plain", code=3)
    road.type("provision", "--yes", "--diff", "--verbose", terminal=True)
    road.type("deploy", "final", "--check", "--diff", "--json", code=3)
    road.type("deploy", "final", "--yes", "--quick", terminal=True)
    for words in (("status",), ("health",), ("releases",), ("releases", "--show", "1"), ("jobs",), ("audit",)):
        road.type(*words, "--json")
        road.type(*words, terminal=True)
    road.type("bench", "--concurrency", "1", "--window", "2", "--out", str(road.out), code=None)
    sh('echo \'{"fail": "die_at_start"}\' >/etc/lab-sglang.json; systemctl restart sglang', check=False)
    road.type("health", code=None)
    road.type("diagnose", code=None)
    road.type("deploy", "bad", "--yes", "--quick", "--plain", code=None)
    road.type("jobs.result", "driver-packages", "--plain", code=None)
    sh("echo 'pat:another' | chpasswd")
    road.type("status", code=1)
    assert "sudo did not take the password" in "".join(road.said.values())
    road.type("--debug", "status", code=1)
    road.type("status", "--plain", code=1, INVOKE_DEBUG="1")

    for typed, said in road.said.items():
        assert MARK not in said, f"`invoke {typed}` shows it"
    written = [path for path in road.out.rglob("*") if path.is_file()]
    assert any(path.suffix == ".html" for path in written), written
    assert [path for path in written if MARK.encode() in path.read_bytes()] == []

    sh("systemctl stop watch-root watch-nobody")
    for watched in ("/var/tmp/watched-by-root", "/var/tmp/watched-by-nobody"):
        assert int(sh(f"stat -c %s {watched}").stdout) > 100_000, "nothing was watched"
        assert sh(f"grep -caF {MARK} {watched}; true").stdout.strip() == "0", f"{watched} saw it"
    assert sh(READABLE.format(mark=MARK)).stdout == "", "others can read it"
    assert sh(f"journalctl --no-pager -o export | grep -caF {MARK}; true").stdout.strip() == "0"
    kept = sh(EVERYWHERE.format(mark=MARK)).stdout.split()
    assert kept, "the key is nowhere, so the search finds nothing"
    modes = {line for path in kept for line in sh(f"stat -c '%a %U' {path}").stdout.splitlines()}
    assert modes <= {"600 root", "400 root", "640 root", "440 root"}, (kept, modes)
    assert not [path for path in kept if re.search(r"/(jobs|log|audit)", path)], kept
    for never_written in (SUDO, TOKEN):
        assert sh(EVERYWHERE.format(mark=shlex.quote(never_written))).stdout == "", "only the server's key stays there"
