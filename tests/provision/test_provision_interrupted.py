"""What was cut off in the middle, by kill -9 and by a reboot: the next run goes on, or begins that one thing again."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.depot.serve import server
from lab.guest import Guest
from lab.lab import Lab
from lab.standins import models
from tests.provision.provision_runs import Provision, Run

pytestmark = [pytest.mark.lab, pytest.mark.slow]

BUILD = frozenset({"base", "driver", "cuda", "flash-attn"})
MODEL = frozenset({"model"})
OTHER, HERE = "/srv/other-host/GLM-5-NVFP4", "/srv/models/GLM-5-NVFP4"
PART = f"{HERE}/.runbooks/part/big.bin"
BIG = 1500  # MiB
WHEEL = "flash-attn 2.8.3.post2 wheel"


@contextmanager
def at_work(provision: Provision, tags: frozenset[str], begun: str) -> Iterator[list[Run]]:
    """A run that goes on beside us, once the shell test `begun` succeeds on the guest; its end is in the list."""
    ended: list[Run] = []
    thread = threading.Thread(target=lambda: ended.append(provision(tags=tags)))
    thread.start()
    until = time.monotonic() + 400
    while provision.guest.run(begun, check=False).returncode != 0:
        assert thread.is_alive(), "it ended before"
        assert time.monotonic() < until, "it never came so far"
        time.sleep(0.2)
    yield ended
    thread.join(300)
    assert ended


def kill(guest: Guest, stage: str) -> None:
    """The job with everything below it, as the OOM killer or a hand would, only more thorough."""
    guest.run(f"systemctl kill --kill-whom=all -s KILL 'rb-{stage}-*'")


def test_a_build_that_was_killed_and_one_that_was_rebooted_away(lab: Lab, guest: Guest) -> None:
    provision = Provision(lab, guest)
    with at_work(provision, BUILD, "pgrep -x ninja") as ended:
        kill(guest, "flash-attn")
    assert len(ended[0].result.warnings) == 1
    with at_work(provision, BUILD, "pgrep -x ninja") as ended:
        guest.reboot()
    assert ended[0].result.failed or ended[0].result.warnings
    run = provision(tags=BUILD)
    assert (run.errors, run.result.warnings) == ([], [])
    assert run.said.steps("changed") == [WHEEL]
    assert provision(tags=BUILD).result.changed == 0


@pytest.fixture
def from_another_host(lab: Lab, guest: Guest, tmp_path: Path) -> Provision:
    """The model comes over real SSH, from a folder with one large file more; the guest plays both hosts."""
    assert Provision(lab, guest)(tags=MODEL | {"runtime"}).errors == []  # the runtime brings the client of the Hub
    guest.run(
        f"mkdir -p /srv/other-host && mv {HERE} {OTHER} && head -c {BIG}M /dev/urandom >{OTHER}/big.bin", timeout=120
    )
    lines = []
    for line in lab.inventory.read_text().splitlines():
        if line.startswith("    source: hf:"):
            line = f"    source: ssh://root@{guest.address}{OTHER}\n    ssh_key: {{file: key}}"
        lines.append(line)
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("\n".join(lines) + "\n")
    shutil.copy(guest.keys / "id_ed25519", tmp_path / "key")
    return Provision(lab, guest, inventory)


def test_a_download_goes_on_where_it_was(from_another_host: Provision) -> None:
    provision, guest = from_another_host, from_another_host.guest

    def size() -> int:
        return int(guest.run(f"stat -c %s {PART} 2>/dev/null || echo 0").stdout)

    with at_work(provision, MODEL, f"[ $(stat -c %s {PART} 2>/dev/null || echo 0) -gt 50000000 ]") as ended:
        kill(guest, "model")
    assert ended[0].errors
    first = size()
    assert first > 50_000_000
    with at_work(provision, MODEL, f"[ $(stat -c %s {PART}) -gt {first + 50_000_000} ]") as ended:
        guest.reboot()
    second = size()
    assert second > first
    run = provision(tags=MODEL)
    assert (run.errors, run.said.steps("changed")) == ([], ["download /srv/models/GLM-5-NVFP4"])
    assert any("are there; what is missing comes" in str(event.data.get("diff")) for event in run.said.events)
    guest.run(f"cmp {OTHER}/big.bin {HERE}/big.bin && cmp {OTHER}/config.json {HERE}/config.json", timeout=120)
    assert provision(tags=MODEL).result.changed == 0


SHARDS = [f"{HERE}/model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
HUB_PORT, RATE = 8091, 1_500_000  # bytes a second of each file that comes


@pytest.fixture
def far_hub(lab: Lab, guest: Guest, tmp_path: Path) -> Iterator[Provision]:
    """The lab's hub far away, over a model of 44 MB, of which nothing is here yet."""
    assert Provision(lab, guest)(tags=BUILD | {"runtime"}).errors == []  # the runtime brings `hf`
    guest.run(f"rm -rf {HERE}")
    folder = models.write(tmp_path / "models")
    for shard, megabytes in zip(SHARDS, (2, 8, 16, 16), strict=True):
        tensor = {"model.layers.3.x": ("U8", [1 << 20, megabytes])}
        (folder / Path(shard).name).write_bytes(models.safetensors(tensor))
    listed = json.loads((folder / "manifest.json").read_text())
    for entry in listed["files"]:
        data = (folder / entry["path"]).read_bytes()
        entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    (folder / "manifest.json").write_text(json.dumps(listed))
    inventory = tmp_path / "inventory.yaml"
    text = lab.inventory.read_text()
    inventory.write_text(re.sub(r"(?m)^( +endpoint: http://[\d.]+):\d+", rf"\1:{HUB_PORT}", text))
    with server(lab.network.gateway, HUB_PORT, tmp_path, rate=RATE) as hub:
        threading.Thread(target=hub.serve_forever, args=(0.1,), daemon=True).start()
        yield Provision(lab, guest, inventory)
        hub.shutdown()


def test_a_download_from_the_hub_keeps_every_file_that_is_whole(far_hub: Provision) -> None:
    """`hf` takes no partial file up again: what was cut off in a file comes anew, what is whole stays as it lies."""
    provision, guest = far_hub, far_hub.guest
    parts = f"find {HERE}/.cache -name '*.incomplete' -size +1M | grep -q ."

    def lies(shard: str) -> str:
        return guest.run(f"stat -c '%i %y' {shard}").stdout

    with at_work(provision, MODEL, f"[ -e {SHARDS[0]} ] && {parts}") as ended:
        kill(guest, "model")
    assert ended[0].errors
    assert any(re.search(r"^fetch [\d.]+/44\.\d MB \d+ MB/s", event.text) for event in ended[0].said.events)
    first = lies(SHARDS[0])
    assert guest.run(f"ls {SHARDS[3]}", check=False).returncode != 0
    with at_work(provision, MODEL, f"[ -e {SHARDS[1]} ] && {parts}") as ended:
        guest.reboot()
    second = lies(SHARDS[1])
    run = provision(tags=MODEL)
    assert (run.errors, run.said.steps("changed")) == ([], [f"download {HERE}"])
    assert (lies(SHARDS[0]), lies(SHARDS[1])) == (first, second)
    assert guest.run(f"find {HERE} -name '*.incomplete'").stdout == ""
    assert provision(tags=MODEL).result.changed == 0
