"""The tasks about virtual machines and their nodes: what people type, and nothing else."""

from __future__ import annotations

from invoke.context import Context

from runbooks.options import WHERE, open_session
from runbooks.surface import command

HELP = {
    **WHERE,
    "yes": "do not ask: consent to downtime",
    "log": "what it printed at its last start by provisioning, instead of a login",
    "confirm": "the VM's name, typed once more, where there is nobody to ask",
    "node": "only the Proxmox nodes below these hosts: IOMMU, cards, memory, the API account's privileges",
}


@command(iterable=["hosts"], help=HELP)
def status(
    context: Context, hosts: list[str], inventory: str | None = None, json: bool = False, plain: bool = False
) -> int:
    """Does the VM exist, and does it run."""
    from runbooks.provision import power

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return power.status(session)


@command(iterable=["hosts"], help=HELP)
def start(
    context: Context, hosts: list[str], inventory: str | None = None, json: bool = False, plain: bool = False
) -> int:
    """Start the VM, once."""
    from runbooks.provision import power

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return power.start(session)


@command(iterable=["hosts"], help=HELP)
def shutdown(
    context: Context,
    hosts: list[str],
    inventory: str | None = None,
    yes: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Let the guest shut down; never by force."""
    from runbooks.provision import power

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain, yes=yes) as session:
        return power.shutdown(session)


@command(iterable=["hosts"], help=HELP)
def console(context: Context, hosts: list[str], inventory: str | None = None, log: bool = False) -> int:
    """The VM's serial console; Ctrl-O leaves it."""
    from runbooks.provision import power

    with open_session(inventory=inventory, hosts=hosts) as session:
        return power.console(session, log=log)


@command(iterable=["hosts"], help=HELP)
def destroy(
    context: Context,
    hosts: list[str],
    confirm: str = "",
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Remove a VM and its disks; its name must be typed."""
    from runbooks.provision import power

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return power.destroy(session, confirm)


@command(looks=True, iterable=["hosts"], help=HELP)
def doctor(
    context: Context,
    hosts: list[str],
    node: bool = False,
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Every check of a host and of its Proxmox node, each with its cure; changes nothing."""
    from runbooks.provision.doctor import doctor as run

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return run(session, node_only=node)
