"""`invoke monitor.install`: Prometheus and node_exporter on each host, on loopback, with our rules and scrape
configuration; `invoke monitor.files` writes the same for a Prometheus and a Grafana of one's own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from runbooks.engine.errors import RunbookError, worst
from runbooks.engine.facts import Facts
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.step import Stage, Step
from runbooks.monitor import dashboard, rules, scrape
from runbooks.paths import expand
from runbooks.steps.build import Command
from runbooks.steps.files import File
from runbooks.steps.packages import Packages
from runbooks.steps.services import Unit
from runbooks.surface import CHANGES_FOUND

if TYPE_CHECKING:
    from runbooks.engine.report import Reporter
    from runbooks.engine.transport import Connection
    from runbooks.inventory.shape import Inventory
    from runbooks.session import Session

HEADER = "# Written by `invoke monitor.install`; changes here are lost at its next run.\n"
UNITS = "(sglang|sglang-gateway|runbooks-canary).*"
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "prometheus": (f"--web.listen-address={scrape.PROMETHEUS}", "--storage.tsdb.retention.time=15d"),
    "prometheus-node-exporter": (
        f"--web.listen-address={scrape.NODE}",
        "--collector.systemd",
        "--collector.systemd.enable-restarts-metrics",
        f"--collector.systemd.unit-include={UNITS}",
        # As it comes, node_exporter leaves /dev/shm and /mnt out: NCCL needs the one, models often lie on the other.
        "--collector.filesystem.mount-points-exclude=^/(proc|sys|run)($|/)",
    ),
}
"""Debian's and Ubuntu's units read these from /etc/default/NAME."""

# Prometheus reads its files at a start and at a reload, and tells when that was; a rule file that it cannot read leaves
# the old rules in force.
_FRESH = f"""\
python3 - <<'PY'
import os, re, sys, urllib.request
text = urllib.request.urlopen("http://{scrape.PROMETHEUS}/metrics", timeout=5).read().decode()
read = float(re.search(r"^prometheus_config_last_reload_success_timestamp_seconds (\\S+)", text, re.M)[1])
sys.exit(not all(os.stat(name).st_mtime <= read for name in ("{scrape.CONFIG}", "{scrape.RULES}")))
PY
"""


def install_hosts(session: Session, *, check: bool = False, diff: bool = False) -> int:
    """Exit code as of `invoke provision`."""
    inventory = session.loaded.inventory

    def one(conn: Connection) -> HostResult:
        build = partial(stages, inventory=inventory, host=conn.name)
        options = Options(check=check, diff=diff, what="monitor.install", consent=session.consent)
        return converge(conn, build, options=options, report=session.report)

    outcomes = session.each(one, gently=True)
    failed = session.tell_errors(outcomes)
    results = [outcome.value for outcome in outcomes if outcome.value is not None]
    for result in results:
        for error in result.failed:
            session.report.failed(error, host=result.host)
        if not result.failed:
            count, said = (result.would_change, "would change") if check else (result.changed, "changed")
            at = f"http://{scrape.PROMETHEUS} on the host"
            text = f"{count} {said}; {len(rules.alerts(inventory.gpus.count))} alerts, Prometheus at {at}"
            state = ("would-change" if check else "changed") if count else "ok"
            session.report.emit("result", text, host=result.host, state=state)
    if code := worst(failed, *(error.exit_code for result in results for error in result.failed)):
        return code
    return CHANGES_FOUND if check and any(result.would_change for result in results) else 0


def stages(facts: Facts, *, inventory: Inventory, host: str) -> list[Stage]:
    """Packages, the arguments of both units, the two files, and that what runs has read them."""
    del facts  # Debian and Ubuntu call everything here alike
    tags = frozenset({"monitor"})
    arguments: list[Step] = [
        File(path=f"/etc/default/{unit}", content=_defaults(words), then=f"systemctl restart {unit}")
        for unit, words in ARGUMENTS.items()
    ]
    config = shown(scrape.on_host(inventory, host))
    files = (
        File(path=scrape.RULES, content=rules_text(inventory)),
        File(path=scrape.CONFIG, content=config),
        Command(name="rules are sound", script="false", unless=f"promtool check config {scrape.CONFIG}"),
    )
    units = tuple(Unit(name=f"{name}.service", enabled=True, active=True) for name in ARGUMENTS)
    fresh = Command(name="prometheus has read its files", script="systemctl reload prometheus; sleep 2", unless=_FRESH)
    return [
        Stage("monitor packages", (Packages(names=tuple(ARGUMENTS)),), tags),
        Stage("monitor files", (*files, *arguments), tags),
        Stage("monitor", (*units, fresh), tags),
    ]


def _defaults(words: tuple[str, ...]) -> str:
    """systemd splits $ARGS at blanks, and takes no quotes inside: no word may hold either."""
    assert not any(" " in word or '"' in word for word in words)
    return f'{HEADER}ARGS="{" ".join(words)}"\n'


def rules_text(inventory: Inventory) -> str:
    return shown(rules.document(inventory.gpus.count, inventory.monitoring.pages))


def shown(document: dict[str, Any]) -> str:
    return HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def write_files(inventory: Inventory, hosts: list[str], out: str, report: Reporter) -> int:
    """Rules, scrape configuration and dashboard as files in a folder here."""
    folder = expand(out)
    texts = {
        "glm5-rules.yaml": rules_text(inventory),
        "prometheus.yaml": shown(scrape.for_all(inventory, hosts)).replace(scrape.RULES, "glm5-rules.yaml"),
        "dashboard.json": json.dumps(dashboard.document(), indent=1) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunbookError(f"cannot write to {out}: {error.strerror or error}") from None
    report.emit("result", f"written to {shlex.quote(str(folder))}: {', '.join(texts)}", level="good")
    return 0
