"""`invoke gateway`: SGLang's own gateway in front of each group that has one, as steps on the machine it runs on.

    /opt/runbooks/gateway/{argv.json, launch.py, api-key}; its environment is a runtime like any other

What it was started with is written down as a hash at every start, so whether it must restart is read from
the machine, never from 'this run changed a file'. A restart gives running answers 180 s, and takes the servers that the
inventory names: one that is taken out for a deploy comes back in by that, and is checked for health like the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from runbooks import paths
from runbooks.deploy.key import ready_key
from runbooks.engine.errors import UsageError
from runbooks.engine.facts import Facts
from runbooks.engine.run import Options, converge
from runbooks.engine.secret import Secret
from runbooks.engine.step import Stage, Step
from runbooks.inventory.shape import Gateway, Inventory
from runbooks.session import Session
from runbooks.steps.build import BuiltOnce, Command
from runbooks.steps.files import Directory, File, render
from runbooks.steps.packages import Packages
from runbooks.steps.python import import_check, make_venv, pip
from runbooks.steps.services import Unit
from runbooks.surface import CHANGES_FOUND

UNIT = "sglang-gateway.service"
FOLDER = paths.GATEWAY
HEALTH = {"interval": 10, "timeout": 25, "failures": 3}
"""Seconds, and how many. SGLang's /health makes a token, and waits behind a long prefill: 20 s there are no death. A
server that is gone costs no request meanwhile: a connection refused is tried again on another at once."""


def gateways(session: Session, *, check: bool = False, diff: bool = False) -> int:
    """Set up the gateway of every group that has one and holds a chosen host. Exit code as of `invoke provision`."""
    inventory = session.loaded.inventory
    names = [
        name for name, group in inventory.groups.items() if group.gateway and set(group.hosts) & set(session.hosts)
    ]
    if not names:
        raise UsageError("no group of these hosts has a gateway", next="groups.NAME.gateway in the inventory")
    key = session.api_key() if check else ready_key(session)
    failed = changes = False
    for name in names:
        with session.connect_gateway(name) as conn:
            build = partial(stages, inventory=inventory, name=name, key=key)
            options = Options(check=check, diff=diff, consent=session.consent)
            result = converge(conn, build, options=options, report=session.report)
        for error in result.failed:
            session.report.failed(error, host=result.host)
        failed, changes = failed or bool(result.failed), changes or bool(result.would_change)
        if not result.failed:
            at = inventory.groups[name].gateway
            text = f"{result.would_change} would change" if check else f"gateway of {name}: {result.changed} changed"
            session.report.emit(
                "result", f"{text}; it listens on {at.host}:{at.port}" if at else text, host=result.host
            )
    return 1 if failed else CHANGES_FOUND if check and changes else 0


def stages(facts: Facts, *, inventory: Inventory, name: str, key: Secret | None) -> list[Stage]:
    """Its environment, its files, its unit, and that the running one was started with just these."""
    del facts  # the same everywhere
    gateway = inventory.groups[name].gateway
    assert gateway is not None
    runtime = runtime_of(gateway)
    words = json.dumps(argv(inventory, name), indent=0) + "\n"
    launcher = (Path(__file__).parent / "launch.py").read_text()
    hosts = inventory.groups[name].hosts
    names = {"group": name, "hosts": hosts, "runtime": runtime, "folder": FOLDER, "has_key": key is not None}
    secret = key.reveal() if key else ""
    unit = render("sglang-gateway.service.j2", {**names, "stamp": ""})
    stamp = hashlib.sha256("\0".join([words, launcher, unit, secret]).encode()).hexdigest()[:12]
    files: list[Step] = [
        Directory(path=FOLDER),
        File(path=f"{FOLDER}/argv.json", content=words),
        File(path=f"{FOLDER}/launch.py", content=launcher),
        File(
            path=f"/etc/systemd/system/{UNIT}", content=render("sglang-gateway.service.j2", {**names, "stamp": stamp})
        ),
    ]
    if key is not None:
        files.append(File(path=f"{FOLDER}/api-key", content=Secret(f"{secret}\n"), mode=0o600))
    tags = frozenset({"gateway"})
    return [
        Stage("gateway environment", (Packages(names=("python3-venv",)), _built(gateway, runtime)), tags),
        Stage("gateway files", tuple(files), tags),
        Stage("gateway", (Unit(name=UNIT, enabled=True), _runs(stamp)), tags),
    ]


def argv(inventory: Inventory, name: str) -> list[str]:
    """The gateway's own words, without the key."""
    gateway = inventory.groups[name].gateway
    assert gateway is not None
    return [
        f"--host={gateway.host}",
        f"--port={gateway.port}",
        f"--policy={gateway.policy}",
        "--prometheus-host=127.0.0.1",
        f"--prometheus-port={gateway.metrics_port}",
        f"--health-check-interval-secs={HEALTH['interval']}",
        f"--health-check-timeout-secs={HEALTH['timeout']}",
        f"--health-failure-threshold={HEALTH['failures']}",
        "--log-level=warn",
        "--worker-urls",
        *(worker(inventory, host) for host in inventory.groups[name].hosts),
    ]


def worker(inventory: Inventory, host: str) -> str:
    """Where the gateway finds the server of a host."""
    address = inventory.hosts[host].address
    return f"http://{f'[{address}]' if ':' in address else address}:{inventory.server.port}"


def runtime_of(gateway: Gateway) -> str:
    pinned = [list(gateway.packages), gateway.python, gateway.dependencies]
    return f"{paths.RUNTIMES}/{hashlib.sha256(msgspec.json.encode(pinned)).hexdigest()[:12]}"


def _built(gateway: Gateway, runtime: str) -> BuiltOnce:
    venv = '"$FOLDER/venv"'
    options: Sequence[str] = [] if gateway.dependencies else ["--no-deps"]
    recipe = [
        make_venv(venv, gateway.python),
        pip(venv, "install", [*options, *gateway.packages], gateway.index),
        import_check(venv, ["sglang_router"]),
    ]
    return BuiltOnce(
        name="gateway environment",
        folder=runtime,
        recipe="\n".join(recipe),
        shown=gateway.packages,
        keeps=("venv/bin/python",),
        limit=900,
    )


def _runs(stamp: str) -> Command:
    return Command(
        name="gateway runs as written",
        script=f"systemctl daemon-reload && systemctl restart {UNIT}",
        unless=f"systemctl is-active -q {UNIT} && grep -qx {stamp} /run/sglang-gateway/started-with",
        limit=300,
    )
