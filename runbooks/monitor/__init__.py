"""Prometheus, its rules and a dashboard for what provisioning and deploying set up."""

from runbooks.monitor.install import install_hosts, write_files

__all__ = ["install_hosts", "write_files"]
