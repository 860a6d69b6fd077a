"""`python -m bench.engine.ours TARGETS`: the play by our engine, a whole process as people start it.

TARGETS is a JSON file: [{"name", "address", "port", "key", "known_hosts"}]. `--record FILE` writes the questions that
were asked of the first host, as one script: the least that anybody has to send.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

from runbooks.engine.shell import Answer
from runbooks.engine.transport import Connection, Target


class Recording(Connection):
    """Keeps what it asks."""

    script = ""

    def ask(self, script: str, *, deadline: float = 30.0, stdin: bytes = b"") -> Answer:
        self.script += f"(\n{script}\n)\n"
        return super().ask(script, deadline=deadline, stdin=stdin)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets")
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--record")
    chosen = parser.parse_args()
    targets = {
        raw["name"]: Target(**{**raw, "key": Path(raw["key"]), "known_hosts": Path(raw["known_hosts"])})
        for raw in json.loads(Path(chosen.targets).read_text())
    }
    kind = Recording if chosen.record else Connection
    connections = {name: kind(target) for name, target in targets.items()}
    for connection in connections.values():
        connection.begin()  # as `invoke provision` does: the hosts' logins and our imports go on side by side
    from bench.engine.rollout import roll_out

    failed = roll_out(connections, copies=chosen.copies)
    for connection in connections.values():
        if isinstance(connection, Recording):
            Path(chosen.record).write_text(connection.script)
    gc.freeze()  # as our commands do: what is loaded needs no search for garbage at the end
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
