"""Several hosts as one server: they meet at --dist-init-addr, and what one of them loses, all lose.

As in torch.distributed's rendezvous, rank 0 listens and the others come. A rank above 0 serves no model: SGLang starts
a small server there that answers /health, /health_generate and /ping alone.
"""

from __future__ import annotations

import http.server
import socket
import threading
import time
from typing import Any, NoReturn

from . import death
from .log import Log

PATIENCE = 600.0  # seconds until the others must have come


def meet(args: dict[str, Any], log: Log) -> None:
    """Returns when all are there; from then on a lost connection ends this process."""
    count, rank = int(args.get("nnodes") or 1), int(args.get("node_rank") or 0)
    if count < 2:
        return
    host, _, port = str(args["dist_init_addr"]).rpartition(":")
    peers = _wait_for(int(port), count - 1) if rank == 0 else [_go_to(host.strip("[]"), int(port))]
    for peer in peers:
        threading.Thread(target=_watch, args=(peer, log), daemon=True).start()


def _wait_for(port: int, count: int) -> list[socket.socket]:
    with socket.create_server(("", port)) as listener:
        listener.settimeout(PATIENCE)
        return [listener.accept()[0] for _ in range(count)]


def _go_to(host: str, port: int) -> socket.socket:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            peer = socket.create_connection((host, port), timeout=5)
            peer.settimeout(None)
            return peer
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _watch(peer: socket.socket, log: Log) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    while peer.recv(64):
        pass
    log.scheduler("[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted: a remote rank is gone")
    log.server("Received sigquit from a child process. It usually means the child failed.")
    death.kill(log)


class _Dummy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path in ("/health", "/health_generate", "/ping") else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve_nothing(args: dict[str, Any], log: Log) -> NoReturn:
    """What a rank above 0 does once the model is loaded."""
    host, port = str(args.get("host") or "127.0.0.1"), int(args.get("port") or 30000)
    log.server("Dummy health check server started in background thread")
    http.server.ThreadingHTTPServer((host, port), _Dummy).serve_forever()
    raise SystemExit(0)
