"""What listens everywhere is asked on loopback, of its own kind of address."""

from __future__ import annotations

import pytest

from runbooks.inventory.beside import beside
from runbooks.inventory.shape import Gateway, Login, Server


@pytest.mark.parametrize(
    ("host", "at"),
    [
        ("127.0.0.1", "127.0.0.1:30000"),
        ("0.0.0.0", "127.0.0.1:30000"),
        ("::", "[::1]:30000"),
        ("2001:db8::5", "[2001:db8::5]:30000"),
        ("10.0.0.5", "10.0.0.5:30000"),
    ],
)
def test_a_server_from_its_own_machine(host: str, at: str) -> None:
    assert beside(Server(host=host)) == at


def test_a_gateway_as_well() -> None:
    assert beside(Gateway(ssh=Login(address="192.0.2.20"), host="0.0.0.0", port=1)) == "127.0.0.1:1"
