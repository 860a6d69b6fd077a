"""A link with a delay, where the kernel has no netem: a proxy that passes every byte on a moment later."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def delayed(to: tuple[str, int], seconds: float) -> Iterator[int]:
    """A port of 127.0.0.1 that leads to `to`; each direction takes `seconds` longer."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(lambda r, w: _join(r, w, to, seconds), "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()


async def _join(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: tuple[str, int], seconds: float
) -> None:
    far_reader, far_writer = await asyncio.open_connection(*to)
    with contextlib.suppress(ConnectionResetError, asyncio.CancelledError):  # a client's goodbye, and our own
        await asyncio.gather(_pass(reader, far_writer, seconds), _pass(far_reader, writer, seconds))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(64 * 1024):
        loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)
