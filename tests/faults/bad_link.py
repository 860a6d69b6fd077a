"""What a bad link does to TCP, where the kernel has no netem: late, in bursts, slowly, one way only, or no more at all.

TCP hides a lost packet: what its user sees is that this one and all behind it come a retransmission later.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.faults.faults_world import World

PACKET = 1400  # bytes
RETRANSMISSION = 0.2, 0.8  # seconds


class BadLink:
    """A port of 127.0.0.1 that leads to `to`. Its weather may change while it is used.

    `loss`: the share of packets that come a retransmission later. `late`: the most seconds that any takes. `rate`:
    bytes a second. `deaf_after`: bytes from the host after which nothing more comes back. `cut_after`: bytes to the
    host after which connections are reset. `sent` and `back`: bytes that went to the host, and came from it.
    """

    def __init__(self, to: tuple[str, int]) -> None:
        self.loss = self.late = 0.0
        self.rate, self.cut_after, self.deaf_after = float("inf"), float("inf"), float("inf")
        self.sent = self.back = self.delayed = 0
        self._to = to
        self._luck = random.Random(0)
        self._stalled_until = 0.0
        self._generation = 0  # connections of an earlier one are reset
        self._half = 0  # connections of an earlier one are half closed
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self, seconds: float) -> None:
        """Nothing passes for a while; then all of it does."""
        self._stalled_until = time.monotonic() + seconds

    def reset(self) -> None:
        """Every connection ends with a RST on both sides."""
        self._generation += 1

    def half_close(self) -> None:
        """The host's side says that nothing more will come, as a middlebox does that forgot us."""
        self._half += 1

    def close(self) -> None:
        self.reset()
        self._server.shutdown(socket.SHUT_RDWR)  # else the kernel goes on listening until `accept` returns
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(self._to)
            except OSError:
                return
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._carry, args=(near, far, self._generation), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket, generation: int) -> None:
        half = self._half
        with near, far:
            reading = [near, far]
            while reading and generation == self._generation:
                if half != self._half and far in reading:
                    reading.remove(far)
                    near.shutdown(socket.SHUT_WR)
                for source in select.select(reading, [], [], 0.02)[0]:
                    try:
                        data = source.recv(PACKET)
                        self._weather(len(data))
                        if not data:
                            reading.remove(source)
                            (far if source is near else near).shutdown(socket.SHUT_WR)
                        elif source is near:
                            far.sendall(data)
                            self.sent += len(data)
                            self._generation += self.sent > self.cut_after
                        elif self.back + len(data) <= self.deaf_after:
                            near.sendall(data)
                            self.back += len(data)
                    except OSError:
                        return
            if generation != self._generation:
                for end in (near, far):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _weather(self, size: int) -> None:
        wait = self._luck.uniform(0, self.late) + size / self.rate
        if self._luck.random() < self.loss:
            wait += self._luck.uniform(*RETRANSMISSION)
            self.delayed += 1
        time.sleep(max(wait, self._stalled_until - time.monotonic(), 0))


@contextmanager
def bad_link(world: World, *, name: str = "bad-link") -> Iterator[tuple[BadLink, dict[str, Any]]]:
    """A link to the guest, and what a target needs to go over it."""
    link = BadLink((world.guest.address, 22))
    known = world.guest.place / name
    pinned = world.target.known_hosts.read_text()
    known.write_text(pinned.replace(f"{world.guest.address} ", f"[127.0.0.1]:{link.port} "))
    try:
        yield link, {"address": "127.0.0.1", "port": link.port, "known_hosts": known}
    finally:
        link.close()
