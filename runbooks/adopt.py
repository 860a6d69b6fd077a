"""`invoke adopt HOST`: read a box that somebody built by hand, write an inventory for it, and show how it differs.

Touches nothing on the host. What looks like a secret is neither shown nor written: its place in the inventory says
where to read it from.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runbooks import paths
from runbooks.engine.errors import CheckFailed, UsageError
from runbooks.engine.look import AT_MOST
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection
from runbooks.inventory import load
from runbooks.inventory.shape import Inventory
from runbooks.session import Session
from runbooks.sglang.argv import OWNED, resolve
from runbooks.sglang.flags import Value, canonical, table

REFERENCE = "final"  # the profile that an adopted server is held against
KEPT_ENVIRONMENT = re.compile(r"(SGLANG|SGL|NCCL|CUDA|TORCH|PYTORCH|TRITON|FLASHINFER|FLASH|HF|OMP|TVM)_")
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
RELEASE_SETS = frozenset(
    {"CUDA_HOME", "HF_HUB_OFFLINE", "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH", "TVM_FFI_CACHE_DIR"}
)
RELEASE_SETS |= {"SGLANG_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "TRITON_CACHE_DIR"}
"""What a release of ours sets by itself, for its own runtime: no profile's to say, and no difference."""
SHOWN_PACKAGES = ("sglang", "torch", "flash-attn", "flashinfer-python", "sgl-kernel", "transformers", "triton")

_PACKAGES = """\
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"]}))
"""

_LOOK = """\
{at_most}
say() {{ printf '%s %s\\n' "$1" "$(base64 -w0)"; }}
pid=$(pgrep -of '[s]glang(\\.| )(launch_server|serve)|[l]aunch\\.py')
if [ "$pid" ]; then
  say argv <"/proc/$pid/cmdline"; say environ <"/proc/$pid/environ"
  sed -n 's/.*\\/\\([^/]*\\.service\\).*/\\1/p' "/proc/$pid/cgroup" | head -n 1 | say unit
  launcher=$(tr '\\0' '\\n' <"/proc/$pid/cmdline" | grep 'launch\\.py$')
  cat "${{launcher%/*}}/argv.json" 2>/dev/null | say words
  [ -e "${{launcher%/*}}/api-key" ] && echo yes | say keyed
  python=$(tr '\\0' '\\n' <"/proc/$pid/cmdline" | head -n 1)
  "$python" -I -c {packages} 2>/dev/null | say packages
fi
cat /sys/module/nvidia/version 2>/dev/null | say module
at_most 8 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader,nounits 2>/dev/null | say gpus
"""


@dataclass(frozen=True)
class Found:
    """What a host was seen to run. `argv` are SGLang's own arguments; an API key in them is in `key`."""

    unit: str
    python: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    packages: Mapping[str, str]
    driver: str
    gpus: tuple[str, ...]
    key: Secret | None = None
    keyed: bool = False  # by a release of ours, which keeps it out of its arguments

    @property
    def version(self) -> str:
        return self.packages.get("sglang", "")

    @property
    def args(self) -> dict[str, Value]:
        """Every argument that differs from the version's default, under its canonical name."""
        flags = table(self.version)
        given, plain = flags.parse(self.argv), flags.parse(["--model-path", "-"])
        return {
            canonical(name): _plain(value)
            for name, value in sorted(given.items())
            if value != plain.get(name) and value is not None
        }


def adopt_host(session: Session, host: str, out: str) -> int:
    """Exit code 0; the inventory is written to `out`. Raises CheckFailed where no SGLang runs."""
    path = Path(out or f"adopted-{host}.yaml")
    if path.exists():
        raise UsageError(f"{path} is there already", next=f"invoke adopt {host} --out ANOTHER.yaml")
    if host not in session.loaded.inventory.hosts:
        raise UsageError(f"the inventory has no host {host!r}: its address and login must stand there")
    with session.connect(host) as connection:
        found = look(connection)
    if found.key is not None:
        session.report.hide(found.key)
    adopted = inventory_for(session.loaded.document.value, host, found)
    path.write_text(_HEAD.format(host=host, unit=found.unit or "no unit") + yaml.safe_dump(adopted, sort_keys=False))
    load(path)
    session.report.table(
        "packages", ["name", "version"], [[n, found.packages[n]] for n in SHOWN_PACKAGES if n in found.packages]
    )
    rows = differences(found, session.loaded.inventory)
    tell_differences(session.report, host, rows)
    session.report.note(f"written: {path}; nothing on the host was touched", host=host, level="good")
    return 0


def tell_differences(report: Reporter, host: str, rows: Sequence[Sequence[str]]) -> None:
    if rows:
        report.table(f"what differs from {REFERENCE}", ["what", "here", REFERENCE], rows, host=host)
    else:
        report.note(f"nothing differs from {REFERENCE}", host=host, level="good")


_HEAD = """\
# Adopted from {host} ({unit}), as it was found running. Read it before you use it: sizes, shapes and sources that a
# running server does not tell are those of the inventory that it was read with.
"""


def look(connection: Connection) -> Found:
    """One exchange. Raises CheckFailed where no SGLang runs."""
    answer = connection.ask(_LOOK.format(at_most=AT_MOST, packages=shlex.quote(_PACKAGES)), deadline=60)
    pairs = (line.partition(" ") for line in answer.out.splitlines() if " " in line)
    return read({name: base64.b64decode(text).decode("utf-8", "replace") for name, _, text in pairs}, connection.name)


def read(said: Mapping[str, str], host: str) -> Found:
    """From the raw texts to what they say. Pure."""
    words = said.get("argv", "").rstrip("\0").split("\0")
    if not said.get("argv"):
        raise CheckFailed(
            "no SGLang server runs on this host",
            host=host,
            next=f"start it, then: invoke adopt {host}",
            page="server-down",
        )
    argv, key = _without_key(_own_words(words, said.get("words", "")))
    entries = (entry.partition("=") for entry in said.get("environ", "").split("\0") if "=" in entry)
    env = {name: value for name, _, value in entries if KEPT_ENVIRONMENT.match(name) and not SECRET_NAME.search(name)}
    if said.get("words", "").strip():  # a release of ours
        env = {name: value for name, value in env.items() if name not in RELEASE_SETS or not _is_its_own(name, value)}
    gpus = tuple(line.strip() for line in said.get("gpus", "").splitlines() if line.strip())
    driver = said.get("module", "").strip() or (gpus[0].split(", ")[1] if gpus else "")
    keyed = said.get("keyed", "").strip() == "yes"
    packages: Mapping[str, str] = json.loads(said.get("packages") or "{}")
    return Found(said.get("unit", "").strip(), words[0], argv, env, packages, driver, gpus, key, keyed)


def _own_words(words: Sequence[str], launched: str) -> list[str]:
    """Behind the module or the subcommand; a server of ours keeps them in argv.json."""
    if launched.strip():
        return [str(word) for word in json.loads(launched[: launched.index("]") + 1])]
    for mark in ("sglang.launch_server", "serve", "launch_server"):
        if mark in words:
            return list(words[words.index(mark) + 1 :])
    return [word for word in words[1:] if word.startswith("--")]


def _without_key(words: Sequence[str]) -> tuple[tuple[str, ...], Secret | None]:
    kept: list[str] = []
    key: Secret | None = None
    rest = iter(words)
    for word in rest:
        name, sep, value = word.partition("=")
        if name in ("--api-key", "--admin-api-key"):
            key = Secret(value if sep else next(rest, ""))
        else:
            kept.append(word)
    return tuple(kept), key


def inventory_for(base: Any, host: str, found: Found) -> dict[str, Any]:
    """The inventory that was read with, for this one host, and with what was found in place of its own."""
    whole: dict[str, Any] = copy.deepcopy(base)
    args = found.args
    model_path = str(args.get("model_path", ""))
    whole["hosts"] = {host: {k: v for k, v in whole["hosts"][host].items() if k not in ("runtime", "model", "vm")}}
    for name in ("groups", "nodes"):
        whole.pop(name, None)
    if found.driver:
        whole["driver"]["version"] = found.driver
    packages = [f"{name}=={version}" for name, version in sorted(found.packages.items()) if name in SHOWN_PACKAGES]
    whole["runtimes"]["adopted"] = {
        "sglang": found.version, "why": f"What {host} was found running.", "packages": packages,
    }  # fmt: skip
    whole["runtime"] = "adopted"
    model = {**copy.deepcopy(whole["models"][whole["model"]]), "path": model_path}
    whole["models"]["adopted"] = model | {"served_name": str(args.get("served_model_name") or model_path)}
    whole["model"] = "adopted"
    server = {"host": str(args.get("host", "127.0.0.1")), "port": int(args.get("port", 30000))}
    whole["server"] = {**whole.get("server", {}), **server}
    if found.key is not None:
        whole["server"]["api_key"] = {"env": "SGLANG_API_KEY"}
    elif not found.keyed:
        whole["server"]["api_key"] = "open"
    elif whole["server"].get("api_key") == "open":
        whole["server"].pop("api_key")  # the default: a file, which the next deploy fills from the host
    own = {name: value for name, value in args.items() if name not in OWNED}
    whole["profiles"]["adopted"] = {"why": f"What {host} was found running.", "args": own, "env": dict(found.env)}
    return whole


def differences(found: Found, inventory: Inventory) -> list[list[str]]:
    """Row by row: what the box has, and what the reference profile says."""
    rows = [["driver", found.driver or "none", inventory.driver.version]]
    rows += [["GPUs", str(len(found.gpus)), str(inventory.gpus.count)]]
    if found.key is None and not found.keyed:
        where = f"{found.args.get('host', '127.0.0.1')}:{found.args.get('port', 30000)}"
        open_to = f"none: whoever reaches {where} may ask"
        rows += [["API key", open_to, open_to if inventory.server.api_key is None else "one"]]
    rows += [["sglang", found.version, inventory.runtimes[inventory.runtime].sglang]]
    if REFERENCE in inventory.profiles:
        wanted = resolve(inventory.profiles, REFERENCE)
        here = {name: value for name, value in found.args.items() if name not in OWNED}
        # Where a profile says nothing of it, there is one rank a GPU.
        final: dict[str, Value] = {"tp_size": inventory.gpus.count, **wanted.args}
        env = {**inventory.runtimes[inventory.runtime].env, **wanted.env}
        for mine, theirs, what in ((here, final, ""), (found.env, env, "env ")):
            for name in sorted({*mine, *theirs}):
                rows.append([f"{what}{name}", _shown(mine.get(name, "-")), _shown(theirs.get(name, "-"))])
    return [row for row in rows if row[1] != row[2]]


def _is_its_own(name: str, value: str) -> bool:
    return name in ("CUDA_HOME", "HF_HUB_OFFLINE") or value.startswith(f"{paths.ROOT}/")


def _shown(value: Value) -> str:
    """1800.0 is 1800: one person's number is another's with a point."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _plain(value: object) -> Value:
    if isinstance(value, (bool, int, float, str)):
        return value
    return " ".join(map(str, value)) if isinstance(value, list) else json.dumps(value)
