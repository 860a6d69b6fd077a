"""What people type. Each task is a few lines; the work is in runbooks/."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.collection import Collection
from invoke.context import Context

sys.path.insert(0, str(Path(__file__).parent))  # `python -m` puts the folder where one stands first, with its lab.py

from lab import commands as lab_commands
from runbooks.commands import bench, hosts, monitor, oncall, tune, vm
from runbooks.options import CHECK, RESULTS, WHERE, YES, open_session
from runbooks.surface import accept_words, command, complete_values


@command(
    iterable=["hosts", "tags", "skip_tags"],
    help={
        **WHERE,
        **YES,
        **CHECK,
        "tags": "only stages with this tag: node, vm, base, driver, cuda, flash-attn, runtime, model; repeatable",
        "skip_tags": "not the stages with this tag",
        "diff": "show the text that changes",
        "serial": "hosts in a batch, or a share such as 25%; a batch begins when the one before has ended",
        "parallel": "the most hosts at once, at least 1 (default: 50)",
        "stop_after_failures": "begin no more hosts after so many have failed (default: 0, go on with the others)",
        "verbose": "every line that apt, pip and compilers print (a failed step shows its last ones in any case)",
        "wait": "while another run holds a host, wait for its end",
    },
)
def provision(
    context: Context,
    hosts: list[str],
    tags: list[str],
    skip_tags: list[str],
    inventory: str | None = None,
    check: bool = False,
    diff: bool = False,
    serial: str = "",
    parallel: int = 50,
    stop_after_failures: int = 0,
    wait: bool = False,
    yes: bool = False,
    verbose: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Driver, CUDA, flash-attn, SGLang and model onto a host."""
    from runbooks.engine.fleet import Rollout

    rollout = Rollout.read(serial=serial, parallel=parallel, stop_after_failures=stop_after_failures)
    said = {"json": json, "plain": plain, "verbose": verbose}
    with open_session(inventory=inventory, hosts=hosts, yes=yes, rollout=rollout, **said) as session:
        session.begin()
        from runbooks.peers import prove
        from runbooks.provision import provision as run

        code = run(session, tags=tags, skip_tags=skip_tags, check=check, diff=diff, wait=wait)
        return code or (0 if check else prove(session, tags, skip_tags))


@command(
    word="profile",
    iterable=["hosts"],
    help={
        **WHERE,
        **YES,
        **CHECK,
        "profile": "a profile of the inventory, e.g. final",
        "from_": "instead: a results folder, or a part of its name; as it was then, or nothing changes",
        "diff": "with --check: the text of unit, command line and environment that changes",
        "quick": "without the full canary, which follows after promotion and takes minutes",
    },
)
def deploy(
    context: Context,
    hosts: list[str],
    profile: str = "",
    from_: str = "",
    inventory: str | None = None,
    check: bool = False,
    diff: bool = False,
    quick: bool = False,
    yes: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Start the server with a profile; roll back if it fails."""
    from runbooks.deploy import deploy_from, deploy_hosts

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain, yes=yes) as session:
        if from_:
            from runbooks.bench.results import named

            return deploy_from(session, str(named(from_)), profile=profile, check=check)
        return deploy_hosts(session, profile, check=check, diff=diff, full_canary=not quick)


@command(
    iterable=["hosts"],
    help={
        **WHERE,
        **YES,
        "show": "one release in full, by its number: command line, environment, software",
        "prune": "remove releases that nothing needs, and runtimes that no kept release and no inventory entry names",
    },
)
def releases(
    context: Context,
    hosts: list[str],
    show: int = 0,
    prune: bool = False,
    inventory: str | None = None,
    yes: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """What was deployed on a host, and which release serves."""
    from runbooks.deploy import list_releases

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain, yes=yes) as session:
        return list_releases(session, show=show, remove=prune)


@command(iterable=["hosts"], help={**WHERE, **YES, "to": "the number of the release (default: the one before)"})
def rollback(
    context: Context,
    hosts: list[str],
    to: int = 0,
    inventory: str | None = None,
    yes: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Bring an earlier release back, its software included."""
    from runbooks.deploy import rollback_hosts

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain, yes=yes) as session:
        return rollback_hosts(session, to or None)


@command(iterable=["hosts"], help={**WHERE, **CHECK, "diff": "show the text that changes", "yes": "do not ask"})
def gateway(
    context: Context,
    hosts: list[str],
    inventory: str | None = None,
    check: bool = False,
    diff: bool = False,
    yes: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """SGLang's gateway in front of the groups that have one."""
    from runbooks.deploy import gateways

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain, yes=yes) as session:
        return gateways(session, check=check, diff=diff)


@command(looks=True, iterable=["hosts"], help=WHERE)
def health(
    context: Context, hosts: list[str], inventory: str | None = None, json: bool = False, plain: bool = False
) -> int:
    """Is it alive: unit, completion, GPUs, gateway."""
    from runbooks.deploy import check_gateways
    from runbooks.health import check_hosts

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return max(check_hosts(session), check_gateways(session))


BATTERY = {"battery": "quick (under 90 s), gate (with 64 streams at once) or full"}


@command(
    name="run",
    default=True,
    iterable=["hosts"],
    help={
        **WHERE,
        **BATTERY,
        "watch": "ask again after so long, e.g. 5m, until Ctrl-C",
        "accept": "the answers changed, and that is meant: if healthy, later runs are compared with today's",
    },
)
def canary(
    context: Context,
    hosts: list[str],
    battery: str = "quick",
    watch: str = "",
    accept: bool = False,
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Does it speak sense: prompts for known failures."""
    from runbooks.canary import canary_hosts

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return canary_hosts(session, battery, watch=watch, accept=accept)


@command(
    iterable=["hosts"],
    help={**WHERE, "out": "the folder for results", "force": "measure although a server holds the GPUs"},
)
def collectives(
    context: Context,
    hosts: list[str],
    out: str = RESULTS,
    force: bool = False,
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Measure what moves between GPUs; prove peer-to-peer."""
    from runbooks.bench import collectives_hosts

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return collectives_hosts(session, out=out, force=force)


@command(
    looks=True,
    word="run",
    help={
        "run": "a results folder (default: the bundled example)",
        "out": "where to write (default: into the run itself; the example's goes to results/example)",
        "baseline": "another results folder, to stand beside it in tables and charts",
    },
)
def report(context: Context, run: str = "", out: str = "", baseline: str = "") -> int:
    """Write a report again (default: the bundled example)."""
    from runbooks.bench import report_only

    return report_only(run or None, out or ("" if run else f"{RESULTS}/example"), baseline=baseline)


@command(
    looks=True,
    positional=["before", "now"],
    help={"before": "a results folder, or a part of its name", "now": "another"},
)
def compare(context: Context, before: str, now: str) -> int:
    """Two runs, like with like: what changed, by how much."""
    from runbooks.bench import compare_runs

    return compare_runs(before, now)


@command(looks=True, help={"out": "the folder for results"})
def results(context: Context, out: str = RESULTS) -> int:
    """The runs that were measured, newest first."""
    from runbooks.bench import list_results

    return list_results(out)


@command(
    looks=True,
    help={
        "inventory": WHERE["inventory"],
        "run": "a folder with collectives.json: show what was measured beside what is published",
        "json": "everything as one line of JSON",
    },
)
def ceiling(context: Context, run: str = "", inventory: str | None = None, json: bool = False) -> int:
    """What the cards allow, and what each option can change."""
    from runbooks.bench import ceiling_task

    with open_session(inventory=inventory, hosts=[]) as session:
        return ceiling_task(session, run=run, as_json=json)


namespace = Collection(
    provision,
    deploy,
    releases,
    rollback,
    gateway,
    health,
    monitor.watch,
    oncall.diagnose,
    ceiling,
    tune.tune,
    results,
    oncall.runbook,
    monitor.docs,
    vm.doctor,
    hosts.status,
    hosts.adopt,
    hosts.unlock,
    hosts.audit,
)
namespace.add_collection(Collection("canary", canary, oncall.install))
namespace.add_collection(Collection("bench", bench.sweep, collectives, compare, report, bench.recompute))
namespace.add_collection(Collection("jobs", hosts.list_jobs, hosts.follow_job, hosts.job_result, hosts.cancel_job))
namespace.add_collection(Collection("vm", vm.status, vm.start, vm.shutdown, vm.console, vm.destroy))
namespace.add_collection(Collection("monitor", monitor.install, monitor.files))
namespace.add_collection(Collection.from_module(lab_commands), name="lab")
accept_words(namespace)
complete_values()
