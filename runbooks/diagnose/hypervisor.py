"""Signatures of the hypervisor's side: the Proxmox table of runbooks.proxmox, as signatures for pasted logs."""

from __future__ import annotations

from runbooks.diagnose.signature import Signature
from runbooks.proxmox.failures import FAILURES, Failure

_ELSEWHERE_TOO = ("Cannot allocate memory", "systemd-modules-load", "got timeout", "Permission check failed")
_HYPERVISOR = r"\bqemu|\bkvm\b|vfio|proxmox|\bpve|hostpci|TASK ERROR|VMID|\bqm\b"


def node() -> tuple[Signature, ...]:
    return tuple(_signature(failure) for failure in FAILURES)


def _signature(failure: Failure) -> Signature:
    wide = any(word in failure.pattern for word in _ELSEWHERE_TOO) and "can't lock file" not in failure.pattern
    return Signature(
        name=_name(failure.what),
        pattern=failure.pattern,
        text=failure.what.replace("{", "{{").replace("}", "}}"),
        fix=failure.cure,
        page=failure.page,
        source=failure.source,
        rank=4 if wide else 1 if failure.page == "gpu-reset" else 2,  # a card that is lost explains what follows
        where="api" if failure.page == "proxmox-api" else "any",
        needs=_HYPERVISOR if wide else "",
    )


def _name(what: str) -> str:
    """A short name from the first words: 'another VM has one of the cards' -> node-another-vm-has-one."""
    words = "".join(letter if letter.isalnum() else " " for letter in what.lower()).split()
    return "-".join(["node", *words[:4]])
