"""The machine and the server as they were during a run: what somebody needs who wants to repeat it, or to doubt it."""

from __future__ import annotations

import hashlib
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from runbooks import paths
from runbooks.engine.artefact import build_zipapp
from runbooks.engine.errors import NoAnswer
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

# Each line: a name, and a command that answers within its own time limit. A hung driver costs its own group only.
_SYSTEM = {
    "kernel": "uname -srvm",
    "os": ". /etc/os-release; echo $PRETTY_NAME",
    "virtualization": "systemd-detect-virt || true",
    "cpu": "lscpu | grep -E '^(Model name|Socket|Core|Thread|CPU\\(s\\)|NUMA)' || true",
    "memory": "grep MemTotal /proc/meminfo",
    "driver": "cat /proc/driver/nvidia/version 2>/dev/null || true",
    "release": f"readlink {paths.CURRENT} || true",
    "arguments": f"cat {paths.CURRENT}/argv.json 2>/dev/null || true",
    "boot_id": "cat /proc/sys/kernel/random/boot_id",
    "command_line": "cat /proc/cmdline",
}
_GPUS = {
    "nvidia_smi": "nvidia-smi",
    "nvidia_smi_q": "nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,ECC,TEMPERATURE",
    "topology": "nvidia-smi topo -m",
    "peer_to_peer": "nvidia-smi topo -p2p r",
}
# Which weights, by the digests that were checked when they came: one figure for all of them.
_WEIGHTS = """\
import hashlib, json, sys
notes = sys.argv[1] + "/.runbooks/"
files = sorted(f"{name} {state.split()[-1]}\\n" for name, state in json.load(open(notes + "verified.json")).items())
whole = hashlib.sha256("".join(files).encode()).hexdigest()
print(f"{open(notes + 'identity').read().strip()}: {len(files)} files, SHA-256 of their names and digests {whole}")
"""
# Of the server's own process: argv without keys, the variables that steer libraries, versions beside its interpreter.
_SERVER = {
    "argv": "tr '\\0' ' ' </proc/$PID/cmdline | sed -E 's/(--[a-z-]*(key|token)[a-z-]*[= ])[^ ]+/\\1***/g'",
    "environment": "tr '\\0' '\\n' </proc/$PID/environ | "
    "grep -E '^(NCCL|SGLANG|SGL|CUDA|TORCH|PYTORCH|OMP|TRITON|FLASHINFER|MAX_JOBS)' | "
    "grep -viE 'key|token|secret' | sort || true",
    "packages": "cd $SITE && ls -d sglang-* sglang_kernel-* sgl_kernel-* torch-* transformers-* flash_attn-* "
    "flashinfer* nvidia_nccl* triton-* 2>/dev/null | grep dist-info || true",
    "package_summary": "sed -n 's/^Summary: //p' $SITE/sglang-*.dist-info/METADATA 2>/dev/null | head -1",
    "checkpoint": f'python3 -c {quote(_WEIGHTS)} "$MODEL" 2>/dev/null || true',
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SECRET = re.compile(r"(api[-_]?key\W{1,3})\S+", re.I)


def tool() -> dict[str, str]:
    """Which version of this repository measured: its release, its commit, and the load generator by its own bytes."""
    root = Path(__file__).parents[2]
    try:
        release = metadata.version("glm-runbooks")
    except metadata.PackageNotFoundError:
        release = "not installed"
    digest = hashlib.sha256(build_zipapp("runbooks.bench.loadgen", "cli:main")).hexdigest()[:12]
    commit = _commit(root) if (root / ".git").exists() else ""
    return {"version": release, "loadgen": digest} | ({"commit": commit} if commit else {})


def _commit(root: Path) -> str:
    """With `-dirty` where files were changed since; "" where git does not tell."""
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip()


def gather(connection: Connection) -> dict[str, Any]:
    """Answers by name; a group that does not answer says so in its place."""
    server = (
        f"PID=$(systemctl show -p MainPID --value {paths.UNIT_NAME} 2>/dev/null); [ ${{PID:-0}} != 0 ] || exit 0\n"
        "PYTHON=$(tr '\\0' '\\n' </proc/$PID/cmdline | head -1)\n"
        'SITE=$(echo "$(dirname "$PYTHON")"/../lib/python3*/site-packages)\n'
        "MODEL=$(tr '\\0' '\\n' </proc/$PID/cmdline | grep -xA1 -e --model-path | tail -n 1)\n"
    )
    return {
        "system": _group(connection, _SYSTEM, ""),
        "gpus": _group(connection, _GPUS, ""),
        "server": _group(connection, _SERVER, server),
    }


def _group(connection: Connection, commands: dict[str, str], before: str) -> dict[str, str]:
    script = before + "".join(
        f"printf '\\n@@ {name}\\n'\n( {command} ) 2>&1 | head -c 60000\n" for name, command in commands.items()
    )
    try:
        out = connection.ask(f"(\n{script})", deadline=30.0).out
    except NoAnswer:
        return {"no answer": "within 30 s"}
    parts = re.split(r"^@@ (\w+)\n", out, flags=re.M)[1:]
    return {
        name: _SECRET.sub(r"\1***", _COLOUR.sub("", text).strip())
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
