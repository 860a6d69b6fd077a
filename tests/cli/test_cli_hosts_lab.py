"""What people type about a host at work: its state, jobs, lock and changes; and about a box that was built by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.guest import Guest
from lab.lab import Lab
from runbooks import paths
from runbooks.engine import lock
from runbooks.engine.jobs import run_job
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection, Target
from runbooks.inventory import load
from tests.recorder import Recorder

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
INVOKE = str(Path(sys.executable).with_name("invoke"))
Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def typed(lab: Lab, guest: Guest) -> Typed:
    def run(*words: str, code: int = 0, hosts: bool = True) -> subprocess.CompletedProcess[str]:
        where = ["--inventory", str(lab.inventory), *(["--hosts", guest.name] if hosts else [])]
        done = subprocess.run(
            [INVOKE, *words, *where], capture_output=True, text=True, check=False, timeout=120, cwd=ROOT,
            stdin=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "200"},
        )  # fmt: skip
        assert "Traceback" not in done.stdout + done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def connection(guest: Guest) -> Iterator[Connection]:
    target = Target(
        name=guest.name, address=guest.address, key=guest.keys / "id_ed25519", known_hosts=guest.keys / "known_hosts"
    )
    with Connection(target) as found:
        yield found


SCRIPT = "echo compiling; setsid sleep 600 & echo $! >/run/child; for i in $(seq 600); do echo tick $i; sleep 0.2; done"


def test_a_host_at_work_as_it_is_typed(typed: Typed, guest: Guest, connection: Connection) -> None:
    """status, jobs, follow, result, cancel, unlock, audit: one after the other, as at 3 a.m."""
    ended: list[int] = []

    def work() -> None:
        with Connection(connection.target) as own:
            ended.append(run_job(own, "long", SCRIPT, limit=300, report=Reporter(Recorder()), changes=True).rc)

    lock.take(connection, "theirs", "provision")
    connection.ask(lock.audit_script("provision", "file /etc/x", ("mode 0644 -> 0600",)))
    thread = threading.Thread(target=work)
    thread.start()
    guest_has = f"until grep -q 'tick 3' {paths.JOBS}/long-*/log 2>/dev/null; do sleep 0.1; done"
    guest.run(guest_has)

    (row,) = _row(typed("status", "--json").stdout)
    told = dict(zip(row["columns"], row["rows"][0], strict=True))
    assert told["host"] == guest.name
    assert told["at work"].startswith("long for ")
    assert f"(pid {os.getpid()})" in told["lock"]
    assert told["lock"].endswith(": provision")
    assert (told["release"], told["profile"], told["canary"]) == ("-", "-", "never")

    assert "at work" in typed("jobs", "--plain").stdout
    assert "tick" in typed("jobs.result", "--plain").stdout
    follow = subprocess.Popen(
        [INVOKE, "jobs.follow", "--plain", "--inventory", str(guest.keys / "inventory.yaml"), "--hosts", guest.name],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
    )  # fmt: skip
    assert follow.stdout is not None
    lines = [follow.stdout.readline() for _ in range(3)]
    assert "compiling" in lines[0]
    assert "tick 2" in lines[2]

    refused = typed("jobs.cancel", code=2)
    assert "--yes" in refused.stdout + refused.stderr
    assert "cancelled" in typed("jobs.cancel", "long", "--yes").stdout
    thread.join(30)
    assert ended == [143]
    assert guest.run("kill -0 $(cat /run/child)", check=False).returncode != 0, "what it started lives on"
    rest, _ = follow.communicate(timeout=30)
    assert (follow.returncode, "long-" in rest, "cancelled" in rest) == (1, True, True)
    assert "cancelled" in typed("jobs.result", "long", code=1).stdout

    said = typed("unlock", "--yes", code=1).stdout
    assert "the lock stays: that run is alive" in said
    said = typed("unlock", "--yes", "--force").stdout
    assert f"(pid {os.getpid()})" in said
    assert "not locked" in typed("unlock", "--yes").stdout
    assert guest.run(f"ls {paths.LOCK}", check=False).returncode != 0
    assert "mode 0644 -> 0600" in typed("audit", "--plain").stdout


def _row(said: str) -> list[dict[str, Any]]:
    return [event for line in said.splitlines() if (event := json.loads(line))["event"] == "table"]


# --- adopt

KEY = "sk-s3ntinel-by-hand"
HAND = f"""\
set -e
useradd -r glm 2>/dev/null || :
python3 -m venv --without-pip /srv/hand
site=$(echo /srv/hand/lib/python3*/site-packages)
mkdir -p $site/sglang
: >$site/sglang/__init__.py
echo 'import time; time.sleep(10**6)' >$site/sglang/launch_server.py
for p in sglang-0.5.23 torch-2.13.0 transformers-5.0.0; do
  mkdir -p $site/$p.dist-info
  printf 'Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\n' "${{p%-*}}" "${{p##*-}}" >$site/$p.dist-info/METADATA
done
cat >/etc/systemd/system/glm.service <<'UNIT'
[Service]
User=glm
Environment=NCCL_P2P_DISABLE=1 HF_TOKEN={KEY}
ExecStart=/srv/hand/bin/python -m sglang.launch_server --model-path /srv/glm --served-model-name glm --tp-size 8 \
  --port 31000 --mem-fraction-static 0.83 --api-key {KEY}
UNIT
systemctl daemon-reload; systemctl restart glm; sleep 1; systemctl is-active glm
"""
# Every file, with what it holds: but for what the host itself writes because somebody logs in.
STATE = (
    f"systemctl show -p MainPID glm; ls /run /tmp /root; cat {paths.AUDIT} 2>&1; "
    "find / -xdev -not \\( -path '/proc/*' -o -path '/sys/*' -o -path '/var/log/*' -o -path '/run/*' -o -path '/tmp/*'"
    " -o -path '/var/lib/systemd/*' \\) -type f -printf '%p %m %U %s %T@ %i\\n' | sort"
)


def test_a_box_that_was_built_by_hand_is_read_and_not_touched(typed: Typed, guest: Guest, tmp_path: Path) -> None:
    guest.run("sh -s", stdin=HAND)
    before = guest.run(
        f"{STATE}; systemctl show -p MainPID glm; ls /run /tmp /root; cat {paths.AUDIT} 2>&1; true"
    ).stdout
    out = tmp_path / "adopted.yaml"
    done = typed("adopt", guest.name, "--out", str(out), "--plain", hosts=False)
    after = guest.run(
        f"{STATE}; systemctl show -p MainPID glm; ls /run /tmp /root; cat {paths.AUDIT} 2>&1; true"
    ).stdout
    changed = sorted(set(before.splitlines()) ^ set(after.splitlines()))
    assert changed == [], "something on the host was touched"
    for said in (done.stdout, done.stderr, out.read_text()):
        assert KEY not in said
    text = out.read_text()
    assert "glm.service" in text.splitlines()[0]
    adopted = load(out).inventory
    assert adopted.profiles["adopted"].args["mem_fraction_static"] == 0.83
    assert dict(adopted.profiles["adopted"].env) == {"NCCL_P2P_DISABLE": "1"}
    assert (adopted.runtimes["adopted"].sglang, adopted.server.port) == ("0.5.23", 31000)
    assert yaml.safe_load(text)["runtimes"]["adopted"]["packages"] == [
        "sglang==0.5.23", "torch==2.13.0", "transformers==5.0.0",
    ]  # fmt: skip
    assert "what differs from final" in done.stdout
    assert "mem_fraction_static" in done.stdout
    again = typed("adopt", guest.name, "--out", str(out), hosts=False, code=2)
    assert "is there already" in again.stderr
