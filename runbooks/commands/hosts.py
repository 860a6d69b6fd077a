"""The tasks that watch over hosts: status, jobs, lock, audit."""

from __future__ import annotations

from invoke.context import Context

from runbooks.options import WHERE, YES, open_session
from runbooks.surface import command


@command(looks=True, iterable=["hosts"], help=WHERE)
def status(
    context: Context, hosts: list[str], inventory: str | None = None, json: bool = False, plain: bool = False
) -> int:
    """One line a host: release, canary, jobs, lock, bench."""
    from runbooks.status import tell_status

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return tell_status(session)


@command(
    iterable=["hosts"],
    help={
        **WHERE,
        "yes": "do not ask; a run that may be alive keeps its lock",
        "force": "with --yes: take it from a run that may be alive, too",
    },
)
def unlock(
    context: Context,
    hosts: list[str],
    inventory: str | None = None,
    yes: bool = False,
    force: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Take a host's lock away from a run that is gone."""
    from runbooks.audit import unlock_hosts

    with open_session(inventory=inventory, hosts=hosts, yes=yes, json=json, plain=plain) as session:
        return unlock_hosts(session, force=force)


@command(looks=True, iterable=["hosts"], help={**WHERE, "lines": "how many of the last changes"})
def audit(
    context: Context,
    hosts: list[str],
    lines: int = 20,
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """What was changed on a host, when, and by whom."""
    from runbooks.audit import tell_changes

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return tell_changes(session, lines)


JOB = {**WHERE, "job": "its name, or the beginning of it (default: the only one at work)"}


@command(name="list", default=True, looks=True, iterable=["hosts"], help=WHERE)
def list_jobs(
    context: Context, hosts: list[str], inventory: str | None = None, json: bool = False, plain: bool = False
) -> int:
    """Long work on the hosts: at work and ended."""
    from runbooks.jobs import list_jobs as run

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return run(session)


@command(name="follow", word="job", iterable=["hosts"], help=JOB)
def follow_job(
    context: Context,
    hosts: list[str],
    job: str = "",
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Watch a job's log to its end."""
    from runbooks.jobs import follow_job as run

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return run(session, job)


@command(name="result", word="job", iterable=["hosts"], help=JOB)
def job_result(
    context: Context,
    hosts: list[str],
    job: str = "",
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """How a job ended, and its last lines."""
    from runbooks.jobs import tell_result as run

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return run(session, job)


@command(name="cancel", word="job", iterable=["hosts"], help={**JOB, **YES})
def cancel_job(
    context: Context,
    hosts: list[str],
    job: str = "",
    inventory: str | None = None,
    yes: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """End a job, with all that it started."""
    from runbooks.jobs import cancel_job as run

    with open_session(inventory=inventory, hosts=hosts, yes=yes, json=json, plain=plain) as session:
        return run(session, job)


@command(
    positional=["host"],
    help={**WHERE, "host": "its name in the inventory", "out": "the inventory to write (default: adopted-HOST.yaml)"},
)
def adopt(context: Context, host: str, out: str = "", inventory: str | None = None, plain: bool = False) -> int:
    """An inventory of a box that was built by hand."""
    from runbooks.adopt import adopt_host

    with open_session(inventory=inventory, plain=plain) as session:
        return adopt_host(session, host, out)
