"""`python -m lab.proxmox`: serve the stand-in for one lab until SIGTERM."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from lab.lab import Lab
from lab.proxmox import certificate
from lab.proxmox.guests import Guests
from lab.proxmox.pve import Pve
from lab.proxmox.server import Accounts, Api


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.proxmox", description="A stand-in for a Proxmox node's API.")
    parser.add_argument("--bind", required=True, help="the lab's own address")
    parser.add_argument("--port", type=int, default=8006)
    parser.add_argument("--lab", required=True, help="the lab whose guests its VMs are")
    parser.add_argument("--mount", action="append", default=[], help="FOLDER:WHERE guests see it, read-only")
    options = parser.parse_args()
    lab = Lab.open(options.lab)
    binds = [(Path(folder), where) for folder, _, where in (text.rpartition(":") for text in options.mount)]
    pve = Pve(Guests(lab, binds))
    secret = (lab.folder / "pve-token").read_text().strip()
    accounts = Accounts(tokens={"root@pam!lab": secret}, passwords={"root@pam": secret})
    path, _ = certificate.ensure(lab.folder, options.bind)
    api = Api((options.bind, options.port), pve, accounts, path)
    journal = (lab.folder / "pve-calls.jsonl").open("a", buffering=1)
    api.journal = lambda line: print(line, file=journal)
    api.orders = lab.folder / "pve-faults.jsonl"
    ended = threading.Event()

    def end(*_: object) -> None:
        ended.set()
        threading.Thread(target=api.shutdown, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    print(f"Proxmox API (stand-in): {api.url}", flush=True)
    with journal:
        while not ended.is_set():
            with api:
                api.serve_forever()
                api.cut()
            if not ended.wait(api.away):
                api = api.again()


if __name__ == "__main__":
    main()
