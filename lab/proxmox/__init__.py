"""A stand-in for the API of a Proxmox VE node, over real TLS; starting one of its VMs boots a lab guest.

    python -m lab.proxmox --bind 10.77.0.1 --lab demo      serve it
    Pve(...), server(...)                                  the same inside a test, with faults on demand

It refuses what PVE refuses: unknown parameters, wrong property strings (by a table of its own), a token that sets what
only root@pam may. Its hardware is eight cards that do not exist. /version says that it is a stand-in.
"""
