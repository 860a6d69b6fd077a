"""A provisioned guest with its inventory, for the lab tests of deploys."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lab.guest import Guest
from lab.lab import Lab
from runbooks.deploy import deploy_hosts, guard, releases
from runbooks.engine.report import Event, Reporter
from runbooks.inventory import load
from runbooks.session import Session
from tests.deploy.asking import Client
from tests.deploy.deploy_fake import Silent

KEY = "sk-lab-key-0123456789"
INVOKE = [str(Path(sys.executable).parent / "invoke")]
BAD: dict[str, Any] = {"dsa_prefill_backend": "flashmla_auto", "dsa_decode_backend": "flashmla_kv"}
ONLY_BAD = {"fail_when": {"dsa_decode_backend": ["flashmla_kv"]}}


class Site:
    """A guest with its inventory, and what can be asked of it."""

    def __init__(self, guest: Guest, inventory: Path, keyed: Path) -> None:
        self.guest, self.inventory, self.keyed = guest, inventory, keyed

    def sh(self, script: str) -> str:
        return self.guest.run(script, check=False).stdout.strip()

    def session(self, *, keyed: bool = False, yes: bool = True) -> tuple[Session, list[Event]]:
        printer = Silent()
        path = self.keyed if keyed else self.inventory
        return Session(load(path), [self.guest.name], Reporter(printer), yes), printer.events

    def deploy(
        self, profile: str, *, keyed: bool = False, yes: bool = True, full: bool = False
    ) -> tuple[int, list[Event]]:
        session, events = self.session(keyed=keyed, yes=yes)
        return deploy_hosts(session, profile, full_canary=full), events

    def knobs(self, **knobs: Any) -> None:
        self.guest.write("/etc/lab-sglang.json", json.dumps(knobs))

    def client(self) -> Client:
        return Client(f"http://{self.guest.address}:30000", threads=2)

    @property
    def current(self) -> str:
        return self.sh("readlink /opt/runbooks/current").rpartition("/")[2]

    @property
    def next(self) -> int:
        return 1 + max(map(int, self.sh("ls /opt/runbooks/releases").split()))

    def until_current_is_not(self, number: str) -> None:
        until = time.monotonic() + 40
        while self.current in (number, "") and time.monotonic() < until:
            time.sleep(0.2)

    def killed_in_the_middle(self) -> tuple[str, str]:
        """A deploy's controller is killed: the numbers of the release before, and of the one that nobody confirms."""
        before = self.current
        self.knobs(start_delay=3)
        command = [*INVOKE, "deploy", "--inventory", str(self.inventory), "--hosts", self.guest.name]
        process = subprocess.Popen([*command, "--profile", "other", "--yes", "--plain"], stdout=subprocess.DEVNULL)
        self.until_current_is_not(before)
        time.sleep(1)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        new = self.current
        assert new not in (before, "")
        assert self.verdict(new) == "None"
        assert self.sh("systemctl is-active runbooks-fallback.timer") == "active"
        return before, new

    def fallback_after(self, seconds: float, before: str, new: str) -> None:
        """The host goes back by itself so soon, instead of in minutes."""
        records = [
            releases.parse(self.sh(f"cat /opt/runbooks/releases/{number}/release.json")) for number in (new, before)
        ]
        assert records[0]
        assert records[1]
        with self.session()[0].connect(self.guest.name) as conn:
            guard.on(conn, records[0], records[1], budget=seconds - guard.GRACE)

    def verdict(self, number: str) -> str:
        return str(json.loads(self.sh(f"cat /opt/runbooks/releases/{number}/release.json"))["verdict"])

    def completion(self) -> str:
        """A real one, from inside; "" when there is no answer."""
        body = json.dumps(
            {"model": "glm-5", "max_tokens": 8, "messages": [{"role": "user", "content": "What is 2+2?"}]}
        )
        code = (
            "import urllib.request as u\n"
            f"r = u.Request('http://127.0.0.1:30000/v1/chat/completions', {body.encode()!r})\n"
            f"r.add_header('Content-Type', 'application/json'); r.add_header('Authorization', 'Bearer {KEY}')\n"
            "try: print(u.urlopen(r, timeout=20).status)\n"
            "except OSError: pass\n"
        )
        self.guest.write("/tmp/ask.py", code)
        return self.sh("python3 /tmp/ask.py")


def provisioned(lab: Lab, guest: Guest, *, budget: int = 20) -> Iterator[Site]:
    """A guest with everything but a server."""
    inventory = yaml.safe_load(lab.inventory.read_text())
    inventory["flash_attn"]["enabled"] = False
    inventory["server"] |= {"ready_budget": budget, "host": "0.0.0.0"}  # so that a client outside can count
    inventory["profiles"]["other"] = {
        "extends": "final",
        "why": "another good one",
        "args": {"mem_fraction_static": 0.85},
    }
    inventory["profiles"]["bad"] = {"extends": "final", "why": "the lab's server fails under it", "args": BAD}
    busy = {"max_running_requests": 96, "cuda_graph_max_bs_decode": 96}
    inventory["profiles"]["bad-busy"] = {"extends": "bad", "why": "and lets more than 64 run at once", "args": busy}
    inventory["profiles"]["lies"] = {
        "extends": "final",
        "why": "expects another dtype",
        "expect": {"kv_cache_dtype": "bf16"},
    }
    path, keyed = lab.inventory.parent / "deploy.yaml", lab.inventory.parent / "deploy-keyed.yaml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    (lab.inventory.parent / "key").write_text(KEY + "\n")
    (lab.inventory.parent / "key").chmod(0o600)
    inventory["server"]["api_key"] = {"file": "key"}
    keyed.write_text(yaml.safe_dump(inventory, sort_keys=False))
    provision = [*INVOKE, "provision", "--inventory", str(path), "--hosts", guest.name, "--plain", "--yes"]
    done = subprocess.run(provision, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    yield Site(guest, path, keyed)
    for left in (path, keyed, lab.inventory.parent / "key"):
        left.unlink(missing_ok=True)
