"""A Proxmox node made ready to hand its cards over: IOMMU, vfio, no driver of its own, huge pages; then looked at.

Source: pve-docs, PCI passthrough and system booting; the failures that each file prevents are named in it.
"""

from __future__ import annotations

from runbooks.engine.step import Stage, Step
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import Gpus, Node
from runbooks.provision.passthrough import Awake, CardsReady, NotListed, RebootForCards, awake_rule
from runbooks.proxmox import look
from runbooks.proxmox.look import NodeState
from runbooks.steps.boot import BootOptions, NodeInitramfs
from runbooks.steps.files import File
from runbooks.steps.kernel import blacklist, modprobe

TAG = "node"
VFIO = ("vfio", "vfio_iommu_type1", "vfio_pci")


def stages(node: Node, gpus: Gpus) -> list[Stage]:
    """The kernel's words in the loader that boots, vfio first at the cards, drivers off; a reboot where the running
    kernel does not have it yet; then every card is looked at.
    """
    tags = frozenset({TAG})
    options = BootOptions(words=_words(node), intel=("intel_iommu=on",))
    files = _modules(node)
    prepare: list[Step] = [
        options,
        NotListed(names=("vfio_virqfd", "nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset")),
        *files,
        awake_rule(),
        NodeInitramfs(files=tuple(file.path for file in files)),
    ]
    return [
        Stage("node passthrough", tuple(prepare), tags),
        Stage("node running", (RebootForCards(options=options, node=node), Awake()), tags),
        Stage("node cards", (CardsReady(node=node, gpus=gpus),), tags),
    ]


def _words(node: Node) -> tuple[str, ...]:
    """`iommu=pt`: no translation for the node's own devices. 1 GiB pages can only be had at boot."""
    pages = ("default_hugepagesz=1G", "hugepagesz=1G", f"hugepages={node.hugepages_gib}")
    return ("iommu=pt", *(pages if node.hugepages_gib else ()), *node.kernel_options)


def _modules(node: Node) -> list[File]:
    ids = ",".join((*node.gpu_ids, *node.audio_ids))
    return [
        File(path="/etc/modules-load.d/runbooks-vfio.conf", content="\n".join(VFIO) + "\n"),
        modprobe(
            "runbooks-vfio",
            (
                f"options vfio-pci ids={ids} disable_vga=1 disable_idle_d3=1",
                "softdep snd_hda_intel pre: vfio-pci",
                "softdep nouveau pre: vfio-pci",
            ),
            why="The cards belong to VMs; in D3cold they may not wake up (kata-containers #11708).",
        ),
        blacklist(
            "nouveau", "nvidia", "nvidiafb", "nova_core", why="No driver of the node's own may bind the cards first."
        ),
    ]


def look_at(connection: Connection) -> NodeState:
    """One exchange."""
    return look.read(connection.ask(look.SCRIPT, deadline=30).out)
