"""Who the API is: a CA, or the pinned fingerprint of its certificate; anything else is refused.

Checked on each call: requests lets REQUESTS_CA_BUNDLE of the environment override what a session says
(merge_environment_settings), so nothing is left to the session or to the environment.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from requests.adapters import HTTPAdapter


class PinnedAdapter(HTTPAdapter):
    """Takes one certificate and no other, by the SHA-256 of its DER form (hex)."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        super().__init__(max_retries=0)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, assert_fingerprint=self._fingerprint, assert_hostname=False, **options)


def plain(fingerprint: str) -> str:
    return fingerprint.replace(":", "").lower()


def observed(api: str, *, timeout: float = 5.0) -> str | None:
    """The fingerprint that the API shows just now, with colons as PVE prints it; None when it shows none."""
    where = urlsplit(api)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # looked at for the error's text, never talked to
    with contextlib.suppress(OSError, ValueError):
        address = (where.hostname or "", where.port or 443)
        with (
            socket.create_connection(address, timeout=timeout) as raw,
            context.wrap_socket(raw, server_hostname=where.hostname) as wrapped,
        ):
            digest = hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest().upper()
            return ":".join(digest[at : at + 2] for at in range(0, 64, 2))
    return None
