"""Proxmox VE: the API's client, and the VM for eight cards as data.

properties, config, diff    pure: what the VM should be, spelled for PVE, and what differs
client, tls, tasks          the one place that talks to the API
failures                    public failures: what they say, what causes them, what helps
look, preflight             a node as its shell shows it, and what must hold before a VM may start there
"""
