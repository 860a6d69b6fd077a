"""`python -m lab.depot`: serve a depot until SIGTERM."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from lab.depot.serve import server


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.depot", description="Serve the lab's packages and models over HTTP."
    )
    parser.add_argument("--bind", default="127.0.0.1", help="a loopback or private address")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--root", type=Path, required=True, help="a folder that lab.depot.prepare has filled")
    options = parser.parse_args()
    depot = server(options.bind, options.port, options.root)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=depot.shutdown).start())
    print(f"depot: http://{options.bind}:{depot.server_address[1]}/ serves {options.root}", flush=True)
    with depot:
        depot.serve_forever()


if __name__ == "__main__":
    main()
