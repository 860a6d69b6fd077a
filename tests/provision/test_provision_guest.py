"""Inside a VM that has just been met: cloud-init first, then its cards counted, with link and NUMA node noted."""

from __future__ import annotations

import pytest

from runbooks.engine.step import Verdict
from runbooks.inventory.shape import Gpus, Node, SecretRef
from runbooks.provision.granted import Peers
from runbooks.provision.guest import CardsPresent, stages
from tests.provision.test_provision_stages import DEBIAN

NODE = Node(api="https://192.0.2.2:8006", user="root@pam!x", token=SecretRef(env="X"))
GPUS = Gpus(count=8, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", memory_mib=97887, arch="12.0")
CARDS = [f"0000:0{bus}:00.0 10de:2bb5 10de -1 16" for bus in range(1, 9)]


def test_cloud_init_ends_before_the_first_apt() -> None:
    """Also with `--tags vm`, which leaves the base out."""
    found = stages(DEBIAN, NODE, GPUS, "<system/>", Peers(asked=False, granted=False))
    names = [step.id for stage in found if "vm" in stage.tags for step in stage.steps]
    assert names.index("cloud-init") < names.index("packages qemu-guest-agent")
    assert [name for name in names if name.startswith("file ")] == [
        "file /opt/runbooks/nccl-topology.xml",
        "file /etc/nccl.conf",
    ]


@pytest.mark.parametrize(
    ("lines", "ok", "said"),
    [
        (CARDS, True, "8 cards, NUMA node -1 (flat: NCCL takes the node's real topology from a file), link x16"),
        ([*CARDS[:7], "0000:08:00.0 10de:2bb5 10de 1 8"], True, "8 cards, NUMA node -1, 1, link x16, x8"),
        ([*CARDS, "0000:00:1f.2 8086:2922 8086 -1"], True, "8 cards"),
        (CARDS[:7], False, "7 cards of 8 are on the VM's bus"),
        ([*CARDS[:7], "0000:08:00.0 10de:2bb5 ffff -1 0"], False, "0000:08:00.0: nobody answers there any more"),
        ([], False, "0 cards of 8"),
    ],
)
def test_cards_are_counted_and_noted(lines: list[str], ok: bool, said: str) -> None:
    step = CardsPresent(node=NODE, gpus=GPUS)
    verdict = step.plan({step.questions()[0]: {"rc": 0, "out": "\n".join(lines)}})
    assert isinstance(verdict, Verdict)
    assert (verdict.ok, said in verdict.line) == (ok, True), verdict.line
