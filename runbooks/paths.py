"""Every path that the project uses on a host, in one place."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]  # here: the folder of tasks.py, inventory.yaml and results/

ROOT = "/opt/runbooks"
RUNTIMES = f"{ROOT}/runtimes"  # <lock-hash>/{venv,cache}: built once, never changed
PYTHONS = f"{ROOT}/pythons"  # unpacked archives, named by their digest
RELEASES = f"{ROOT}/releases"  # numbered folders, each a whole definition of a running server
CURRENT = f"{ROOT}/current"  # symlink to the release that serves
GATEWAY = f"{ROOT}/gateway"  # of a machine that runs SGLang's gateway: its command line, launcher and key
TOOLS = f"{ROOT}/tools"  # pushed artefacts (canary, load generator), named by content

STATE = "/var/lib/runbooks"
JOBS = f"{STATE}/jobs"
DIAGNOSIS = f"{STATE}/diagnosis"  # what failed deploys left to be read
WHEELS = f"{STATE}/wheels"  # built wheels, keyed by everything that decides their bytes

PEERS = f"{STATE}/p2p-verdict"  # of a VM: its grant of peer-to-peer stands, and what the ladder found of it

LOCK = "/run/runbooks.lock"
SWITCHING = "/run/runbooks-switching"  # flock: who may change which release is current, at this moment
AUDIT = "/var/log/runbooks/audit.jsonl"

UNIT = "/etc/systemd/system/sglang.service"
UNIT_NAME = "sglang.service"


def expand(name: str | Path) -> Path:
    """A path of this machine with `~` put in full; that of an unknown user stays as it is, and is not found later."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def home(name: str) -> str:
    """A path that nobody named: in the checkout for who stands anywhere in it, as the tasks are; else here."""
    try:
        here = Path.cwd()
    except OSError:  # a folder that is gone
        return name
    return os.path.relpath(CHECKOUT / name, here) if CHECKOUT in here.parents else name
