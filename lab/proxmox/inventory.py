"""An inventory of a lab whose host is not there yet: the lab's own, with a node and the VM that the host will be."""

from __future__ import annotations

import re
from pathlib import Path

from lab.lab import DEPOT_PORT, PROXMOX_PORT, Lab
from lab.machine import write
from lab.proxmox import certificate
from lab.proxmox.guests import FIRST
from lab.standins import cloud_image
from runbooks.engine.errors import RunbookError

_NODE = """
nodes:
  pve:                                                       # the stand-in of lab/proxmox, over real TLS
    api: {api}
    user: root@pam!lab
    token: {{file: {folder}/pve-token}}
    fingerprint: {fingerprint}
"""
_VM = """\
  {name}:
    address: {address}
    user: root
    key: {folder}/id_ed25519
    vm:
      node: pve
      id: {id}
      cores: 128
      memory_gib: 768
      storage: local-zfs
      disk_gib: 1000
      image:
        url: {images}/{image}
        sha256: {sha256}
        file: {image}
      address: {address}/24
      gateway: {gateway}
      user: root                                             # the lab's image has it, and ops
      ssh_keys: [{folder}/id_ed25519.pub]
      numa_nodes: [0, 1]
"""


def write_inventory(lab: Lab, source: Path, *, hosts: int = 1) -> Path:
    """Write `pve-<source>` beside `source`, an inventory of the lab without hosts."""
    text = source.read_text()
    _, fingerprint = certificate.ensure(lab.folder, lab.network.gateway)
    values = {
        "folder": lab.folder,
        "gateway": lab.network.gateway,
        "api": f"https://{lab.network.gateway}:{PROXMOX_PORT}",
        "fingerprint": fingerprint,
        "images": f"http://{lab.network.gateway}:{DEPOT_PORT}/images",
        "sha256": cloud_image.SHA256,
        "image": cloud_image.NAME,
    }
    vms = "".join(
        _VM.format(name=guest.name, address=guest.address, id=FIRST + guest.index, **values)
        for guest in map(lab.guest_at, range(hosts))
    )
    replaced, count = re.subn(r"^hosts:\n(  .*\n)*", f"hosts:\n{vms}", text, count=1, flags=re.MULTILINE)
    if count != 1:
        raise RunbookError(f"lab: {source} has no hosts")
    path = source.with_name(f"pve-{source.name}")
    write(path, replaced + _NODE.format(**values))
    return path
