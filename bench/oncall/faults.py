"""The fault that each page is about, made in the lab; and how the world is put right again after the page."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.oncall.world import ONLY_FINAL, World

Act = Callable[[World], None]
PCI = "/var/lib/dressed/pci"  # of the dressed node
STREAMS = (
    "import http.client, json, threading, time\n"
    "def one():\n"
    " c = http.client.HTTPConnection('127.0.0.1', 30000)\n"
    " body = {'model': 'glm-5', 'prompt': 'hello', 'max_tokens': 4000, 'ignore_eos': True}\n"
    " c.request('POST', '/v1/completions', json.dumps(body), {'Content-Type': 'application/json'})\n"
    " c.getresponse().read()\n"
    "for _ in range(80): threading.Thread(target=one, daemon=True).start()\n"
    "time.sleep(20)\n"
)
ASK = (
    "curl -s -m 5 -o /dev/null http://127.0.0.1:30000/v1/chat/completions -H 'Content-Type: application/json'"
    """ -d '{"model": "glm-5", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}'"""
)
FORGOTTEN = (  # a boot without them, as far as a node that is a guest can show one
    "sed -i 's/ *iommu=pt//' /etc/default/grub; cd /var/lib/dressed\n"
    """for f in next cmdline; do words=$(sed 's/ *iommu=pt//' $f); echo "$words" >$f; done\n"""
    "echo '[    1.0] iommu: Default domain type: Translated' >dmesg"
)


@dataclass(frozen=True)
class Fault:
    """`cured`: the page itself leads to a healthy end in the lab; False where its cure is beyond what a lab can show
    (a driver's repair), or where the page says to wait. `by_hand`: what the page has people do at a console or a power
    switch before the block of that name, where no command can. `quiet`: the page is read when all is well again.
    `beyond`: blocks whose good end takes real cards."""

    what: str
    make: Act
    cured: bool = True
    mend: Act = lambda world: None
    by_hand: Mapping[str, Act] = field(default_factory=dict)
    quiet: bool = False
    beyond: frozenset[str] = frozenset()


def _knobs(**knobs: object) -> Act:
    """From the next start on, and for the release that has what ONLY_FINAL asks for."""
    return lambda world: world.knobs(**{"start_delay": 0.2, "warmup": 0.1, "fail_when": ONLY_FINAL, **knobs})


def _sick(**knobs: object) -> Act:
    return _both(_knobs(**knobs), lambda world: world.restart())


def _run(script: str) -> Act:
    return lambda world: (world.host.run(script, check=False), None)[1]


def _on_node(script: str) -> Act:
    return lambda world: (world.node.run(script, check=False), None)[1]


def _gpus(**faults: object) -> Act:
    return lambda world: world.host.write("/etc/lab-gpus.json", json.dumps(faults))


def _both(*acts: Act) -> Act:
    def make(world: World) -> None:
        for act in acts:
            act(world)

    return make


def _deaf(world: World) -> None:
    """Until sshd listens no more: a look that begins before would see nothing of it."""
    until = time.monotonic() + 10
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            socket.create_connection((world.host.address, 22), timeout=1).close()
            time.sleep(0.1)


def _edit(old: str, new: str) -> Act:
    return lambda world: world.edit(old, new)


def _invoke(*words: str) -> Act:
    return lambda world: (world.invoke(*words, check=False), None)[1]


_SERVED: Act = lambda world: world.served()  # noqa: E731  (a name for the table below)
_VM: Act = _invoke("provision", "--tags", "vm", "--yes")
_POWER_CYCLE: Act = _on_node(f"for d in {PCI}/*; do printf '\\336\\020' >$d/config; done")
_SHM = "mount -o remount,size={} /dev/shm"

FAULTS: dict[str, Fault] = {
    "canary-degraded": Fault("every answer is one token long", _sick(fail="one_token"), mend=_SERVED),
    "nan-output": Fault("NaN logits", _sick(fail="nan"), mend=_SERVED),
    "server-down": Fault(
        "the scheduler dies after a request",
        _both(_sick(fail="crash_after", detail=1), _run(f"{ASK}; sleep 1")),
        mend=_SERVED,
    ),
    "start-slow": Fault(
        "hangs in the capture of CUDA graphs",
        _both(_knobs(fail="hang_at_start"), _run("systemctl restart --no-block sglang; sleep 6")),
        mend=_SERVED,
    ),
    "deploy-failed": Fault(
        "the release dies at its start",
        _both(  # baseline serves, and final is what fails
            _invoke("rollback", "--yes"),
            _knobs(fail="die_at_start", detail="memory"),
        ),
        mend=_SERVED,
        quiet=True,
    ),
    "slow-throughput": Fault(
        "eighty streams at once", lambda world: (world.host.run(f'(python3 -c "{STREAMS}" >/dev/null 2>&1 &)'), None)[1]
    ),
    "disk-full": Fault(
        "/dev/shm is full",
        _run(f"{_SHM.format('2m')}; head -c 3m /dev/zero >/dev/shm/full"),
        cured=False,
        mend=_run(f"rm -f /dev/shm/full; {_SHM.format('64m')}"),
    ),
    "driver-mismatch": Fault("the loaded module is an older one", _run("echo 580.95.05 >/run/lab-nvidia/version")),
    "gpu-lost": Fault("a card is off the bus", _gpus(lost=[3]), cured=False, mend=_both(_gpus(), _SERVED)),
    "flash-attn-build": Fault(
        "nvcc crashes",
        _both(
            _run("rm -rf /var/lib/runbooks/wheels/*"),
            lambda world: world.host.write("/etc/lab-flash-attn.json", '{"fail": "segfault", "match": ""}'),
        ),
        cured=False,
        mend=_both(_run("rm -f /etc/lab-flash-attn.json"), _invoke("provision", "--yes")),
    ),
    "model-download": Fault(
        "a shard is truncated",
        _run("f=$(ls -S /srv/models/*/*.safetensors | head -n 1); truncate -s 100 $f"),
        mend=_invoke("provision", "--tags", "model", "--yes"),
    ),
    "host-unreachable": Fault(
        "sshd listens no more",
        _both(_run("(sleep 1; systemctl stop ssh.socket ssh; sleep 20; systemctl start ssh) >/dev/null 2>&1 &"), _deaf),
        mend=lambda world: world.host.wait(),
        by_hand={"check": lambda world: world.host.wait()},  # whoever is at its console starts sshd
    ),
    "watch-blind": Fault("the canary's timer is gone", _run("systemctl disable --now runbooks-canary.timer")),
    "proxmox-api": Fault(
        "the token is wrong",
        _both(_edit("user: root@pam!lab\n", "user: root@pam!typo\n")),
        cured=False,
        mend=_edit("user: root@pam!typo\n", "user: root@pam!lab\n"),
    ),
    "vm-start": Fault(
        "the VM is switched off",
        _invoke("vm.shutdown", "--yes"),
        mend=_both(_VM, _SERVED),
    ),
    "gpu-reset": Fault(
        "a card answers ffff",
        _on_node(f"d=$(ls {PCI} | head -n 1); printf '\\377\\377\\377\\377' >{PCI}/$d/config"),
        mend=_both(_POWER_CYCLE, _VM, _SERVED),
        by_hand={"converge": _POWER_CYCLE},
    ),
    "guest-window": Fault(
        "the VM's CPU was changed by hand",
        _edit("      numa_nodes: [0]", "      numa_nodes: [0]\n      phys_bits: 40"),
        cured=False,
        mend=_edit("\n      phys_bits: 40", ""),
    ),
    "node-prepare": Fault(
        "the node came up without its options",
        _both(_invoke("vm.shutdown", "--yes"), _on_node(FORGOTTEN)),
        mend=_both(_VM, _SERVED),
    ),
    "peer-to-peer": Fault(
        "granted, not proven, and sums come out wrong",
        _both(
            _run("mkdir -p /var/lib/runbooks; echo 'wrong data' >/var/lib/runbooks/p2p-verdict"), _sick(fail="garbage")
        ),
        mend=_both(_run("rm -f /var/lib/runbooks/p2p-verdict"), _SERVED),
        by_hand={"deploy": _knobs()},  # without the grant the sums are right
        beyond=frozenset({"prove"}),  # the lab's torch has no tensors
    ),
}
