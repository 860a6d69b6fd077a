"""Where a service is found from the machine that it runs on."""

from __future__ import annotations

from typing import Protocol

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # asyncio's "::" takes IPv6 alone, so 127.0.0.1 would find nobody


class Listens(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


def beside(service: Listens) -> str:
    """HOST:PORT, an IPv6 address in brackets, as URLs and Prometheus want it."""
    host = LOOPBACK.get(service.host, service.host)
    return f"[{host}]:{service.port}" if ":" in host else f"{host}:{service.port}"
