"""The options that many tasks share: their help, said once, and the session that they open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runbooks.paths import home

if TYPE_CHECKING:
    from runbooks.session import Session

WHERE = {
    "inventory": "the inventory file (default: $RUNBOOKS_INVENTORY, or inventory.yaml beside tasks.py)",
    "hosts": "a host, a group, a wildcard, or !one to leave out; repeat it for more (default: all)",
    "json": "one JSON event a line; what each holds: runbooks/engine/report.py",
    "plain": "no live display, no colour",
}
RESULTS = home("results")
YES = {"yes": "do not ask: consent to reboots and to downtime"}
CHECK = {"check": "say what would change, and change nothing (exit code 3 when something would)"}


def open_session(**options: Any) -> Session:
    """`Session.open`, loaded when a task runs: `invoke --list` needs none of it."""
    from runbooks.session import Session

    return Session.open(**options)
