"""The same play for Ansible (pipelining; with and without Mitogen) and pyinfra, each in an environment of its own.

They are installed by pip when the bench first runs, into ~/.cache/runbooks-bench, at the versions pinned here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.engine.play import PACKAGES, ROOT, SERVICES, TEMPLATE, Play

CACHE = Path(os.environ.get("RUNBOOKS_BENCH_CACHE", "~/.cache/runbooks-bench")).expanduser()
PINS = {"ansible": ("ansible-core==2.19.14", "mitogen==0.3.54"), "pyinfra": ("pyinfra==3.10.0",)}

Host = Mapping[str, str]


def install(name: str) -> Path:
    """The `bin` folder of a peer's environment."""
    folder, stamp = CACHE / name, CACHE / f"{name}.pins"
    if not stamp.exists() or stamp.read_text() != repr(PINS[name]):
        print(f"installing {' '.join(PINS[name])} into {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "-q", *PINS[name]], check=True)
        stamp.write_text(repr(PINS[name]))
    return folder / "bin"


def ansible(
    hosts: Sequence[Host], play: Play, folder: Path, *, mitogen: bool, forks: int = 40
) -> tuple[list[str], dict[str, str]]:
    """argv and environment of one run of the playbook."""
    bin_folder = install("ansible")
    (folder / "t.conf.j2").write_text(TEMPLATE)
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": {h["name"]: _ansible_host(h) for h in hosts}}}))
    (folder / "play.json").write_text(json.dumps(_playbook(play, folder)))
    env = {
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_HOST_KEY_CHECKING": "False",
        "ANSIBLE_SSH_ARGS": f"-F /dev/null -o ControlMaster=auto -o ControlPersist=60s -o ControlPath={folder}/cm-%h",
        "ANSIBLE_FORKS": str(forks),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
        "ANSIBLE_NOCOLOR": "True",
    }
    if mitogen:
        found = next((bin_folder.parent / "lib").glob("python3*/site-packages/ansible_mitogen/plugins/strategy"))
        env |= {"ANSIBLE_STRATEGY": "mitogen_linear", "ANSIBLE_STRATEGY_PLUGINS": str(found)}
    return [str(bin_folder / "ansible-playbook"), "-i", str(folder / "hosts.json"), str(folder / "play.json")], env


def _ansible_host(host: Host) -> dict[str, object]:
    return {
        "ansible_host": host["address"],
        "ansible_user": "root",
        "ansible_ssh_private_key_file": host["key"],
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={host['known_hosts']}",
    }


def _playbook(play: Play, folder: Path) -> list[dict[str, object]]:
    tasks: list[dict[str, object]] = [{"apt": {"name": list(PACKAGES), "install_recommends": False}}]
    tasks += [{"file": {"path": path, "state": "directory"}} for path in [ROOT, *play.directories]]
    tasks += [
        {"template": {"src": str(folder / "t.conf.j2"), "dest": path}, "vars": values}
        for path, values in play.templates.items()
    ]
    tasks += [{"lineinfile": {"path": path, "line": line, "create": True}} for path, line in play.lines.items()]
    tasks += [
        {
            "user": {
                "name": name,
                "system": True,
                "home": "/nonexistent",
                "create_home": False,
                "shell": "/usr/sbin/nologin",
            }
        }
        for name in play.users
    ]
    tasks += [{"systemd": {"name": name, "enabled": True, "state": "started"}} for name in SERVICES]
    return [{"hosts": "all", "gather_facts": True, "tasks": tasks}]


def pyinfra(hosts: Sequence[Host], play: Play, folder: Path) -> tuple[list[str], dict[str, str]]:
    """argv and environment of one run of the deploy."""
    bin_folder = install("pyinfra")
    (folder / "t.conf.j2").write_text(TEMPLATE)
    data = [
        (
            host["address"],
            {
                "ssh_user": "root",
                "ssh_key": host["key"],
                "ssh_known_hosts_file": host["known_hosts"],
                "ssh_strict_host_key_checking": "off",
            },
        )
        for host in hosts
    ]
    (folder / "inventory.py").write_text(f"hosts = {data!r}\n")
    lines = ["from pyinfra.operations import apt, files, server, systemd", f"T = {str(folder / 't.conf.j2')!r}"]
    lines += [f"apt.packages(packages={list(PACKAGES)!r}, no_recommends=True)"]
    lines += [f"files.directory(path={path!r})" for path in [ROOT, *play.directories]]
    lines += [f"files.template(src=T, dest={path!r}, **{values!r})" for path, values in play.templates.items()]
    lines += [f"files.line(path={path!r}, line={line!r})" for path, line in play.lines.items()]
    lines += [
        f"server.user(user={name!r}, system=True, home='/nonexistent', create_home=False, shell='/usr/sbin/nologin')"
        for name in play.users
    ]
    lines += [f"systemd.service(service={name + '.service'!r}, running=True, enabled=True)" for name in SERVICES]
    (folder / "deploy.py").write_text("\n".join(lines) + "\n")
    return [str(bin_folder / "pyinfra"), "-y", str(folder / "inventory.py"), str(folder / "deploy.py")], {}
