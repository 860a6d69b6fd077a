"""One look at a host: every question in the background with its own output, so that one that hangs costs only its own
answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runbooks import paths
from runbooks.engine.step import quote

if TYPE_CHECKING:
    from runbooks.engine.secret import Secret
    from runbooks.engine.transport import Connection

PATIENCE = 7.5  # seconds after which what has not answered is called hung
UNIT_FIELDS = (
    "LoadState,ActiveState,SubState,Result,NRestarts,MainPID,ExecMainCode,ExecMainStatus,ExecMainExitTimestamp,"
    "ActiveEnterTimestamp,StateChangeTimestamp,StateChangeTimestampMonotonic,RestartUSec,RestartUSecNext"
)
GPU_FIELDS = (
    "index",
    "name",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "clocks.sm",
    "clocks.max.sm",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "clocks_event_reasons.active",
    "ecc.errors.uncorrected.volatile.total",
)

_PARTS: Mapping[str, str] = {
    "unit": "systemctl show {unit} -p {unit_fields} && sed 's/^/Uptime=/; s/ .*//' /proc/uptime",
    "port": "ss -Hltn 'sport = :{port}'",
    # One that waits in the kernel cannot be killed, and each further one makes it worse.
    "gpus": "if ps -eo stat=,comm= 2>/dev/null | grep -q '^D.* nvidia-smi'; then sleep {hung}; fi\n"
    "timeout -s KILL {hung} nvidia-smi --query-gpu={gpu_fields} --format=csv,noheader,nounits",
    "kernel": "journalctl -k -b -o short-iso --no-pager -q -n 20000"
    " | grep -E 'Xid|NVRM|oom-kill|Out of memory' | tail -n 200",
    "journal": "journalctl -u {unit} -o cat --no-pager -q -n 400",
    "disk": "timeout -s KILL {hung} df -P -B1 / /var {written} {model} /dev/shm",
    "memory": "cat /proc/meminfo",
    "clock": "timedatectl show -p NTPSynchronized --value",
    "load": "cat /proc/loadavg; nproc",
    "vitals": "{vitals}",
}

# One word a line. Of a server on several hosts only rank 0 answers completions.
RANK = f"rank=$(grep -A1 -e --node-rank {paths.CURRENT}/argv.json 2>/dev/null | sed -n '2s/[^0-9]//gp')"

_LOOK = """\
key=$(cat)
d=$(mktemp -d) || exit 1
{starts}
i=0
while [ "$(ls "$d" | grep -c '[.]rc$')" -lt {count} ] && [ "$i" -lt {turns} ]; do sleep 0.2; i=$((i + 1)); done
for part in {names}; do
  if [ -e "$d/$part.rc" ]; then rc=$(cat "$d/$part.rc"); else rc=hung; fi
  printf '\\n{mark} %s %s\\n' "$part" "$rc"; cat "$d/$part.out" 2>/dev/null
done
rm -rf "$d"
"""
_START = '( {{\n{script}\n}} >"$d/{name}.out" 2>&1; echo $? >"$d/{name}.tmp"; mv "$d/{name}.tmp" "$d/{name}.rc" ) &'


@dataclass(frozen=True)
class Part:
    """What one question brought: `rc` is None where it did not answer in time, 127 where its program is not
    installed."""

    rc: int | None
    text: str

    @property
    def hung(self) -> bool:
        """No answer in time; on a busy host its own time-out (124, 137) may end it before we stop waiting."""
        return self.rc in (None, 124, 137)

    @property
    def missing(self) -> bool:
        return self.rc == 127


@dataclass(frozen=True)
class Seen:
    parts: Mapping[str, Part] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Part:
        return self.parts.get(name, Part(127, ""))

    @property
    def rank(self) -> int:
        """Which part of a server on several hosts this is; 0 for a whole one, and for the one that answers."""
        word, _, number = self["vitals"].text.strip().partition(" ")
        return int(number) if word == "rank" and number.isdigit() else 0

    @property
    def vitals(self) -> Mapping[str, Any] | None:
        """What the server said over HTTP; None where nobody could ask."""
        for line in self["vitals"].text.splitlines():
            if line.startswith("{"):
                try:
                    document = json.loads(line)
                except ValueError:
                    return None
                return document if isinstance(document, dict) else None
        return None


def look(
    conn: Connection, *, probe: str, url: str, model_name: str, model_path: str, port: int, key: Secret | None
) -> Seen:
    """Ask everything in one exchange. `probe` is the canary's pushed artefact, which asks the HTTP questions."""
    vitals = f"python3 {quote(probe)} --vitals --url {quote(url)} --model {quote(model_name)}"
    if key is not None:
        vitals = f'RUNBOOKS_API_KEY="$key" {vitals} --key-env RUNBOOKS_API_KEY'
    vitals = f'if [ "${{rank:-0}}" -gt 0 ]; then echo "rank $rank"; else {vitals}; fi'
    values = {
        "unit": paths.UNIT_NAME,
        "unit_fields": UNIT_FIELDS,
        "port": port,
        "gpu_fields": ",".join(GPU_FIELDS),
        "model": quote(model_path),
        "written": f"{paths.ROOT} {paths.STATE}",
        "vitals": f"{RANK}; {vitals}",
        "hung": f"{PATIENCE + 1:.0f}",
    }
    scripts = {name: script.format(**values) for name, script in _PARTS.items()}
    mark = f"rb-{secrets.token_hex(6)}"
    starts = "\n".join(_START.format(script=script, name=name) for name, script in scripts.items())
    whole = _LOOK.format(starts=starts, count=len(scripts), turns=int(PATIENCE * 5), names=" ".join(scripts), mark=mark)
    answer = conn.ask(whole, deadline=PATIENCE + 7, stdin=key.reveal().encode() if key is not None else b"")
    return parse(answer.out, mark)


def parse(text: str, mark: str) -> Seen:
    parts: dict[str, Part] = {}
    for block in text.split(f"\n{mark} ")[1:]:
        head, _, body = block.partition("\n")
        name, _, rc = head.partition(" ")
        parts[name] = Part(int(rc) if rc.strip().isdigit() else None, body.rstrip("\n"))
    return Seen(parts)
