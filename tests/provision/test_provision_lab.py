"""`provision` on a real guest: the first run, the second, what was damaged, and a flash-attn that does not compile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.engine.report import Event
from runbooks.steps.nvidia import ModulesBuilt
from tests.provision.provision_runs import Provision, Run

pytestmark = pytest.mark.lab

AS_IT_LOOKED = {"unit nvidia-persistenced.service", "driver loaded"}
"""What a preview tells otherwise, and says so: an earlier stage brings the unit and the module."""
SHARD = "/srv/models/GLM-5-NVFP4"


def _told(run: Run, state: str) -> dict[str, list[str]]:
    steps = [event for event in run.said.events if event.kind == "step" and event.data["state"] == state]
    return {event.text: event.data["diff"] for event in steps}


def _is_told_while_it_happens(events: list[Event]) -> None:
    """apt, pip and a compile: how far each is, again and again before its step has ended. Where the index says nothing
    of what a package needs, pip's whole is not known; a download's lines are watched in test_provision_interrupted.py.
    """
    for step, unit, whole in (("packages", "steps", True), ("flash-attn", "", True), ("runtime", "packages", False)):
        progress = [event for event in events if event.kind == "progress" and event.text.startswith(step)]
        told = [event for event in progress if event.data["unit"] == unit and bool(event.data["total"]) is whole]
        assert told, f"{step}: {[event.data for event in progress]}"
        told = [event for event in told if event.text == told[0].text]
        (end,) = [event for event in events if event.kind == "step" and event.text == told[0].text]
        assert events.index(told[-1]) < events.index(end)
        assert len({event.data["done"] for event in told}) >= 3, [event.data for event in told]
        assert told[0].time < end.time


@pytest.fixture(scope="module")
def provision(lab: Lab, guest: Guest) -> Provision:
    """A guest that was provisioned once; the preview before it named what the run then did."""
    run = Provision(lab, guest)
    preview = run(check=True)
    assert preview.errors == []
    first = run()
    assert first.errors == []
    assert first.result.warnings == []
    foreseen, done = _told(preview, "would-change"), _told(first, "changed")
    assert list(foreseen) == list(done)
    assert {name for name in done if foreseen[name] != done[name]} <= AS_IT_LOOKED
    later = [event.text for event in preview.said.events if event.kind == "stage" and "as it looks now" in event.text]
    assert [text.split("   ")[0] for text in later][:2] == ["driver sources", "driver packages"]
    _is_told_while_it_happens(first.said.events)
    assert first.result.changed == preview.result.would_change > 15
    return run


def test_what_the_first_run_left(provision: Provision) -> None:
    """Seen over plain ssh, not by our own looks."""
    look = provision.guest.run
    assert look("nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c").stdout.split()[0] == "8"
    assert look("apt-mark showhold").stdout.split() == ["nvidia-open", "nvidia-persistenced"]
    assert look("systemctl is-active nvidia-persistenced").stdout.strip() == "active"
    python = f"{provision.runtime}/venv/bin/python"
    assert look(f"{python} -c 'import sglang, torch, flash_attn; print(sglang.__version__)'").stdout.strip() == "0.5.23"
    assert look(f"stat -c %U {provision.runtime}/cache").stdout.strip() == "sglang"
    assert look(f"runuser -u sglang -- cat {SHARD}/config.json").stdout.strip().startswith("{")


def test_a_second_run_changes_nothing_and_costs_two_exchanges(provision: Provision) -> None:
    again = provision()
    assert again.errors == []
    assert again.result.changed == 0
    assert (again.execs, again.exchanges) == (1, 2)
    assert not [event for event in again.said.events if event.kind == "output"]


DAMAGE = {
    "a shard": (f"rm {SHARD}/config.json", [f"download {SHARD}"]),
    "a truncated shard": (f"truncate -s 10 {SHARD}/config.json", [f"download {SHARD}"]),
    "the hold": ("apt-mark unhold nvidia-open", ["hold nvidia-open nvidia-persistenced"]),
    "a file's mode": ("chmod 0600 /etc/apt/preferences.d/nvidia", ["file /etc/apt/preferences.d/nvidia"]),
    "a modprobe file": ("rm /etc/modprobe.d/nvidia-uvm.conf", ["file /etc/modprobe.d/nvidia-uvm.conf"]),
    "a service": (
        "systemctl disable --now nvidia-persistenced",
        ["unit nvidia-persistenced.service"],
    ),
    "the venv": ("rm $(echo /opt/runbooks/runtimes/*/venv/bin/python)", ["runtime sglang 0.5.23"]),
    "the wheel's file": ("rm /var/lib/runbooks/wheels/*/*.whl", ["flash-attn 2.8.3.post2 wheel"]),
    "the wheel": ("rm -r /var/lib/runbooks/wheels/*", ["flash-attn 2.8.3.post2 wheel"]),
    "half a build": ("rm /opt/runbooks/runtimes/*/built", ["runtime sglang 0.5.23"]),
    "a package": ("dpkg -r --force-depends numactl", ["packages ca-certificates curl kmod pciutils and 7 more"]),
}


SLOW = (
    "the venv",
    "the wheel",
    "the wheel's file",
    "half a build",
    "a package",
)  # build something again


@pytest.mark.parametrize(
    ("damage", "repaired"),
    [pytest.param(*DAMAGE[name], id=name, marks=[pytest.mark.slow] if name in SLOW else []) for name in DAMAGE],
)
def test_damage_is_repaired_and_nothing_else(provision: Provision, damage: str, repaired: list[str]) -> None:
    provision.guest.run(damage)
    preview = provision(check=True)
    run = provision()
    assert run.errors == []
    assert run.said.steps("changed") == repaired == preview.said.steps("would-change")
    assert provision().result.changed == 0


def test_a_package_of_the_venv_alone_comes_again(provision: Provision) -> None:
    """Of the index and of our own wheel; nothing else is written, and no server may run from it."""
    site = f"$(echo {provision.runtime}/venv/lib/python3*/site-packages)"
    others = f"stat -c '%n %i %y' {provision.runtime}/built {site}/sglang/*.py {site}/huggingface_hub/*.py"
    before = provision.guest.run(others).stdout
    server = (
        f"systemd-run --quiet --unit gs-server {provision.runtime}/venv/bin/python -c 'import time; time.sleep(99)'"
    )
    provision.guest.run(f"rm -r {site}/torch {site}/flash_attn/__init__.py && {server}")
    (error,) = provision().result.failed
    assert "a server runs from it" in error.message
    provision.guest.run("systemctl stop gs-server")
    run = provision()
    assert (run.errors, run.said.steps("changed")) == ([], ["runtime sglang 0.5.23"])
    steps = [event for event in run.said.events if event.kind == "step" and event.data.get("state") == "changed"]
    (diff,) = (event.data["diff"] for event in steps)
    assert diff[0].endswith(" and others gone or changed: flash-attn==2.8.3.post2, torch==2.13.0 again")
    assert provision.guest.run(others).stdout == before
    assert provision.guest.run(f"{provision.runtime}/venv/bin/python -c 'import torch, flash_attn'").returncode == 0
    assert provision().result.changed == 0


@pytest.mark.parametrize(
    ("cards", "said"), [('{"count": 0}', "nvidia-smi shows no card"), ('{"hang": true}', "nvidia-smi does not answer")]
)
def test_cards_that_are_gone_are_said_at_once(provision: Provision, cards: str, said: str) -> None:
    """No reboot, which would be in vain; and no second look that still wants a change."""
    boot = provision.guest.boot_id
    provision.guest.write("/etc/lab-gpus.json", cards)
    run = provision()
    provision.guest.run("rm /etc/lab-gpus.json")
    (error,) = run.result.failed
    assert said in error.message
    assert error.page == "gpu-lost"
    assert run.result.changed == 0
    assert provision.guest.boot_id == boot


def test_a_module_that_was_deleted_is_built_again(provision: Provision) -> None:
    """The step of machines with modules of their own, here against DKMS and the module that it built in the guest."""
    step = ModulesBuilt(version="580.126.20")
    find = "find /lib/modules -name 'nvidia.ko*'"
    module = provision.guest.run(find).stdout.strip()
    assert module
    assert provision.steps(step).result.changed == 0
    provision.guest.run(f"rm {module}")
    run = provision.steps(step)
    assert (run.errors, run.result.changed) == ([], 1)
    assert provision.guest.run(find).stdout.strip() == module


def test_a_second_host_takes_the_wheel_of_the_first(provision: Provision, tmp_path: Path) -> None:
    """Over real SSH; the guest plays both hosts, so its wheel is moved to where the other's would be."""
    guest, other = provision.guest, "/srv/other-host/wheels"
    guest.run(f"mkdir -p {other} && mv /var/lib/runbooks/wheels/* {other}")
    shutil.copy(guest.keys / "id_ed25519", tmp_path / "key")
    cache = f"  cache: ssh://root@{guest.address}{other}\n  ssh_key: {{file: key}}\n"
    inventory = tmp_path / "inventory.yaml"
    text = provision.lab.inventory.read_text()
    inventory.write_text(text.replace("flash_attn:\n", f"flash_attn:\n{cache}", 1))
    run = Provision(provision.lab, guest, inventory)()
    assert (run.errors, run.said.steps("changed")) == ([], ["flash-attn 2.8.3.post2 wheel"])
    said = [event.text for event in run.said.events if event.kind == "output"]
    assert any("taken from flash_attn.cache" in line for line in said)
    assert not any("nvcc" in line for line in said)
    assert provision().result.changed == 0


def test_a_flash_attn_that_does_not_compile_is_a_warning(provision: Provision) -> None:
    """The runtime is then built without it, under a name of its own; the failed build is not begun again by itself."""
    look = provision.guest.run
    look("rm -r /var/lib/runbooks/wheels/* /opt/runbooks/runtimes/*")
    provision.guest.write("/etc/lab-flash-attn.json", '{"fail": "segfault", "match": ""}')
    run = provision()
    assert run.errors == []
    assert len(run.result.warnings) == 1
    assert "died due to signal 11" in str(run.result.warnings[0])
    assert look(f"test -e {provision.runtime_without}/built").returncode == 0
    assert "without flash-attn" in look(f"cat {provision.runtime_without}/why.txt").stdout

    again = provision()
    assert again.result.changed == 0
    assert "nvcc crashed" in str(again.result.warnings[0])

    look(f"rm -r /etc/lab-flash-attn.json {provision.wheels()}")
    mended = provision()
    assert (mended.errors, mended.result.warnings) == ([], [])
    assert mended.said.steps("changed") == ["flash-attn 2.8.3.post2 wheel", "runtime sglang 0.5.23"]
    assert look(f"test -e {provision.runtime}/built && test -e {provision.runtime_without}/built").returncode == 0
