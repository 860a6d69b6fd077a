"""One look at a host before a deploy: releases, what serves, and what would stop a new server from starting."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from runbooks import paths
from runbooks.deploy.releases import Release, parse
from runbooks.deploy.unit import Plan
from runbooks.engine.errors import CheckFailed
from runbooks.engine.look import AT_MOST
from runbooks.engine.secret import Secret
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

SHOWN = "ActiveState,SubState,Result,MainPID,NRestarts,InvocationID,ExecMainCode,ExecMainStatus,Job,Environment"
MARK = "-- rb: "

WRITTEN = (paths.RELEASES, paths.RUNTIMES, paths.JOBS, paths.DIAGNOSIS, str(PurePosixPath(paths.AUDIT).parent))
"""What a deploy, its jobs and a server that starts write to."""
ROOM = 200e6  # bytes: a job's log may take 64 MiB, the bundle of a failure and compiled kernels the rest
FILES = 200  # of a file system that counts them
HUNG = 15  # seconds after which nvidia-smi is called hung

# Each part says its name first; each is bounded, since nvidia-smi can hang for ever on a lost GPU.
_LOOK = """\
{at_most}
echo '{mark}current'; readlink {current}
echo '{mark}releases'
for f in {releases}/[0-9]*/release.json; do [ -e "$f" ] && tr -d '\\n' <"$f" && echo; done
echo '{mark}unit'; systemctl show -p {shown} {unit}
echo '{mark}stamp'
tr '\\0' '\\n' 2>/dev/null <"/proc/$(systemctl show -p MainPID --value {unit})/environ" | grep '^RUNBOOKS_RELEASE='
echo '{mark}runtime'; for r in {runtimes}; do [ -e $r/built ] && [ -x $r/venv/bin/python ] && echo $r; done
echo '{mark}model'; ls -- {model} 2>/dev/null | grep -c -e '^config.json$' -e '^model.*safetensors'
echo '{mark}missing'; {missing}
echo '{mark}user'; id -u {user} 2>/dev/null
echo '{mark}unreadable'
cd /; id -u {user} >/dev/null 2>&1 &&
  timeout 20 runuser -u {user} -- find {model}/ -maxdepth 1 ! -readable 2>&1 | head -n 5
echo '{mark}port'
for p in $(ss -Hltnp 'sport = :{port}' 2>/dev/null | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u); do
  grep -q '/{unit}$' /proc/$p/cgroup || echo "$p $(tr '\\0' ' ' </proc/$p/cmdline | cut -c1-120)"
done
echo '{mark}gpus'; at_most {hung} nvidia-smi --query-gpu=index --format=csv,noheader 2>&1; rc=$?; echo "rc=$rc"
echo '{mark}held'
[ "$rc" -ne 0 ] || at_most {hung} nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits 2>&1 |
while IFS=', ' read -r p mib; do
  [ -e "/proc/$p/cgroup" ] && ! grep -q '/{unit}$' "/proc/$p/cgroup" &&
    echo "$p ($mib MiB) $(tr '\\0' ' ' </proc/$p/cmdline | cut -c1-100)"
done
echo '{mark}room'
for p in {written}; do
  while [ ! -e "$p" ]; do p=$(dirname -- "$p"); done
  at_most 5 df -B1 --output=avail,itotal,iavail,target -- "$p" 2>/dev/null | tail -n 1
done | sort -u
echo '{mark}key'; [ -e {current}/api-key ] && cmp -s - {current}/api-key && echo same
"""


# Files of a model that are not there, or not as long as when their digest was checked. A model that was brought by hand
# has no such list; then its own index says which files hold its weights.
MISSING = """\
( cd -- {model} 2>/dev/null || exit
  if [ -e .runbooks/files ]; then
    xargs -0 stat -c '%s %n' -- <.runbooks/files 2>/dev/null | grep -vxFf - .runbooks/sizes | cut -d ' ' -f 2-
  elif [ -d .runbooks ]; then echo 'its download has not come to its end'
  else
    grep -o '"[^"]*[.]safetensors"' model.safetensors.index.json 2>/dev/null | sort -u | tr -d '"' |
      while read -r f; do [ -s "$f" ] || echo "$f"; done
  fi ) | head -n 6"""


@dataclass(frozen=True)
class Host:
    """What the look found. `port_taken` and `gpu_held` name processes that are not our server's."""

    current: int | None
    releases: tuple[Release, ...]
    unit: Mapping[str, str]
    runtime: str | None
    model_files: int
    missing: tuple[str, ...]
    user: bool
    unreadable: tuple[str, ...]
    port_taken: tuple[str, ...]
    gpus: int | None
    gpu_lines: tuple[str, ...]
    gpu_held: tuple[str, ...]
    key_same: bool
    running: str | None = field(default=None)
    full: tuple[str, ...] = ()  # file systems that a deploy writes to, and that have no room for it

    @property
    def serves(self) -> bool:
        return self.unit.get("ActiveState") == "active"

    def release(self, number: int | None) -> Release | None:
        return next((release for release in self.releases if release.number == number), None)

    @property
    def next_number(self) -> int:
        return max([0, *(release.number for release in self.releases)]) + 1

    def good(self, but: int) -> list[Release]:
        """What to go back to, best first: the release that serves if it was promoted, then the newest that were; never
        `but`. What was deployed twice counts once."""
        found = [release for release in self.releases if release.verdict == "promoted" and release.number != but]
        found.sort(key=lambda release: (release.number == self.current, release.number), reverse=True)
        best: dict[str, Release] = {}
        for release in found:
            best.setdefault(release.content, release)
        return list(best.values())


def look(
    conn: Connection, *, runtimes: Sequence[str], model_path: str, user: str, port: int, key: Secret | None
) -> Host:
    """Ask everything in one exchange. `runtimes` are the folders that will do, best first."""
    script = _LOOK.format(
        at_most=AT_MOST,
        hung=HUNG,
        mark=MARK,
        current=paths.CURRENT,
        releases=paths.RELEASES,
        shown=SHOWN,
        unit=paths.UNIT_NAME,
        runtimes=" ".join(quote(runtime) for runtime in runtimes),
        model=quote(model_path),
        missing=MISSING.format(model=quote(model_path)),
        user=quote(user),
        port=port,
        written=" ".join(WRITTEN),
    )
    return read(conn.ask(script, stdin=f"{key.reveal()}\n".encode() if key else b"", deadline=90).out)


def read(text: str) -> Host:
    """Pure: the answer of the look, as values."""
    parts: dict[str, list[str]] = {}
    for part in text.split(MARK)[1:]:
        name, *lines = part.strip("\n").split("\n")
        parts[name] = [line for line in lines if line.strip()]
    unit = dict(line.partition("=")[::2] for line in parts.get("unit", []))
    gpus = parts.get("gpus", [])
    # The process itself knows best: a unit that was read again, and not restarted yet, is ahead of it.
    said = " ".join(parts.get("stamp", [])) or unit.get("Environment", "")
    stamp = re.search(r"RUNBOOKS_RELEASE=(\S+)", said)
    current = (parts.get("current") or [""])[0].rpartition("/")[2]
    return Host(
        current=int(current) if current.isdigit() else None,
        releases=tuple(release for line in parts.get("releases", []) if (release := parse(line))),
        unit=unit,
        runtime=next(iter(parts.get("runtime", [])), None),
        model_files=int((parts.get("model") or ["0"])[0]),
        missing=tuple(parts.get("missing", [])),
        user=bool(parts.get("user")),
        unreadable=tuple(parts.get("unreadable", [])),
        port_taken=tuple(parts.get("port", [])),
        gpus=len(gpus) - 1 if gpus and gpus[-1] == "rc=0" else None,
        gpu_lines=tuple(gpus),
        gpu_held=tuple(parts.get("held", [])),
        key_same="same" in parts.get("key", []),
        running=stamp[1] if stamp else None,
        full=tuple(_full(parts.get("room", []))),
    )


def _full(lines: Sequence[str]) -> Iterator[str]:
    """Of df's lines, those with too little room, in words; one that df does not count is not judged."""
    for line in lines:
        avail, files, free, *mount = [*line.split(maxsplit=3), "", "", ""][:4]
        if avail.isdigit() and int(avail) < ROOM:
            yield f"{''.join(mount)}: {int(avail) / 1e6:.0f} MB free, {ROOM / 1e6:.0f} MB needed"
        elif files.isdigit() and int(files) and free.isdigit() and int(free) < FILES:
            yield f"{''.join(mount)}: {free} inodes free, {FILES} needed"


def need_runtime(host: Host, version: str, name: str) -> str:
    """The folder of the runtime. Raises CheckFailed where it was not built."""
    if host.runtime is None:
        raise CheckFailed(
            f"the runtime with SGLang {version} is not built here",
            host=name,
            step="deploy",
            next=f"invoke provision --hosts {name} --tags runtime",
        )
    return host.runtime


def check(host: Host, plan: Plan, name: str) -> None:
    """Raise CheckFailed for the first thing that would stop the new server; nothing has been touched."""
    again = f"invoke provision --hosts {name}"
    if not host.user:
        raise CheckFailed(f"the user {plan.user} does not exist", host=name, step="deploy", next=f"{again} --tags base")
    if host.full:
        raise CheckFailed(
            "no room for what a deploy writes (releases, logs of jobs, the bundle of a failure): nothing was touched",
            host=name,
            step="deploy",
            details=host.full,
            next=f"ssh to {name}: df -h {paths.ROOT} {paths.STATE}; df -i {paths.ROOT} {paths.STATE}",
            page="disk-full",
        )
    if host.model_files < 2:
        raise CheckFailed(
            f"the model is not there: {plan.model.path} holds no config.json with weights",
            host=name,
            step="deploy",
            next=f"{again} --tags model",
        )
    if host.missing:
        raise CheckFailed(
            f"the model in {plan.model.path} is not whole",
            host=name,
            step="deploy",
            details=[f"missing, or cut off: {file}" if "." in file else file for file in host.missing[:5]]
            + (["and more"] if len(host.missing) > 5 else []),
            next=f"{again} --tags model",
            page="model-download",
        )
    if host.unreadable:
        raise CheckFailed(
            f"the user {plan.user} cannot read the model: SGLang would say 'No such file or directory' and die",
            host=name,
            step="deploy",
            details=host.unreadable,
            next=f"ssh to {name}: chmod -R a+rX {plan.model.path}",
        )
    if host.port_taken:
        raise CheckFailed(
            f"port {plan.port} is taken by another process",
            host=name,
            step="deploy",
            details=[f"pid {line}" for line in host.port_taken],
            next="stop that process, or change server.port in the inventory",
            page="server-down",
        )
    if plan.launch.args.get("device", "cuda") == "cuda":
        _check_gpus(host, plan, name)


def _check_gpus(host: Host, plan: Plan, name: str) -> None:
    if host.gpus is None:
        hung = host.gpu_lines[-1:] in (("rc=124",), ("rc=137",))
        raise CheckFailed(
            f"nvidia-smi does not answer: it hung for {HUNG} s" if hung else "nvidia-smi failed",
            host=name,
            step="deploy",
            details=host.gpu_lines[:3],
            next=f"invoke health --hosts {name}",
            page="gpu-lost",
        )
    if host.gpus != plan.gpus:
        raise CheckFailed(
            f"{host.gpus} GPUs answer, and the inventory says {plan.gpus}",
            host=name,
            step="deploy",
            next=f"invoke health --hosts {name}",
            page="gpu-lost",
        )
    if host.gpu_held:
        raise CheckFailed(
            "GPU memory is held by a process that is not the server",
            host=name,
            step="deploy",
            details=[f"pid {line}" for line in host.gpu_held],
            next="end that process first: its memory would be missing for the KV cache",
            page="gpu-lost",
        )
