"""Guests with the real SGLang of a version, for slow lab tests; wheels and tiny models come from the lab's cache."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lab import engine, router
from lab.engine import flags
from lab.guest import Guest
from lab.lab import Lab, quiet
from runbooks.engine.report import Event, Reporter
from runbooks.inventory import load
from runbooks.session import Session
from tests.deploy.deploy_fake import Silent
from tests.deploy.site import INVOKE

KEY = "sk-real-0123456789"
WHEEL = "/srv/lab-wheel"  # where guests see the one wheel of a version


class Site:
    """Guests that serve one version, an inventory for them, and one with a model of NaN."""

    def __init__(self, guests: list[Guest], good: Path, nan: Path) -> None:
        self.guests, self.good, self.nan = guests, good, nan

    @property
    def guest(self) -> Guest:
        return self.guests[0]

    @property
    def url(self) -> str:
        return f"http://{self.guest.address}:30000"

    def session(self, path: Path | None = None, *, yes: bool = True) -> tuple[Session, list[Event]]:
        printer = Silent()
        names = [guest.name for guest in self.guests]
        return Session(load(path or self.good), names, Reporter(printer), yes), printer.events

    def sh(self, script: str) -> str:
        return self.guest.run(script, check=False).stdout.strip()

    def provision(self, path: Path, *words: str) -> None:
        done = subprocess.run(
            [*INVOKE, "provision", "--inventory", str(path), "--plain", "--yes", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    @property
    def current(self) -> list[str]:
        said = [one.run("readlink /opt/runbooks/current", check=False).stdout for one in self.guests]
        return [path.strip().rpartition("/")[2] for path in said]


@contextmanager
def serving(lab: Lab, version: str, *, count: int = 1) -> Iterator[Site]:
    """So many guests, provisioned; more than one get a gateway on the first."""
    binds = [*engine.prepare(quiet).binds, (flags.wheel(version), WHEEL), (router.prepare(quiet), router.BINDS_AT)]
    guests = [lab.add(binds=binds) for _ in range(count)]
    folder = lab.inventory.parent
    inventory: dict[str, Any] = yaml.safe_load((folder / engine.INVENTORY.name).read_text())
    names = [guest.name for guest in guests]
    known = yaml.safe_load(lab.inventory.read_text())["hosts"]
    inventory["hosts"] = {name: known[name] for name in names}
    inventory["flash_attn"]["enabled"] = False
    runtime = inventory["runtimes"]["sglang-cpu"]
    runtime |= {"sglang": version, "packages": [*runtime["packages"][:-1], f"sglang=={version}"]}
    runtime["index"]["find_links"].append(WHEEL)
    key = folder / "key"
    key.write_text(KEY + "\n")
    key.chmod(0o600)
    inventory["server"] |= {"host": "0.0.0.0", "api_key": {"file": "key"}, "ready_budget": 400}
    inventory["profiles"] |= {
        "lost": {"extends": "final", "why": "no tokenizer there", "args": {"tokenizer_path": "/srv/models/none"}},
        "unread": {"extends": "final", "why": "no JSON to the real parser", "args": {"forward_hooks": "NaN"}},
        "other": {"extends": "final", "why": "another good one", "args": {"max_running_requests": 80}},
    }
    if count > 1:
        index = {"find_links": [router.BINDS_AT], "only": True}
        gateway = {"ssh": known[names[0]], "host": "0.0.0.0", "index": index}
        inventory["groups"] = {"pool": {"hosts": names, "gateway": gateway}}
    good, nan = folder / "real.yaml", folder / "real-nan.yaml"
    good.write_text(yaml.safe_dump(inventory, sort_keys=False))
    nan.write_text(yaml.safe_dump({**inventory, "model": "nan-layer"}, sort_keys=False))
    site = Site(guests, good, nan)
    try:
        site.provision(good)
        yield site
    finally:
        for guest in guests:
            lab.remove(guest)
        for left in (good, nan, key):
            left.unlink(missing_ok=True)
