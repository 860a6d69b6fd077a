"""Asked to stop: Ctrl-C or SIGTERM, however often and whenever, or nobody reads what we print. One flag for a process.

Only where nothing has to be written down does the first of them raise Interrupted; anywhere else what is under way
comes to its end, and looks at the flag.
"""

from __future__ import annotations

import os
import signal

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Stop soon, and leave a valid partial result."""


class Stop:
    def __init__(self) -> None:
        self.asked = False
        self._raises = False

    def listen(self) -> None:
        for number in NUMBERS:
            signal.signal(number, self.ask)

    def ask(self, *_: object) -> None:
        """A signal's handler, and for who prints into a closed pipe."""
        self.asked = True
        if self._raises:
            self._raises = False
            raise Interrupted

    @staticmethod
    def over() -> None:
        """All is written down: no signal may change the exit code any more. Python itself forgets its handlers."""
        signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)

    def __enter__(self) -> None:
        """Within: Interrupted is raised at once. It may also come on the way out."""
        self._raises = True
        self.check()

    def __exit__(self, *_: object) -> None:
        self._raises = False

    def check(self) -> None:
        """For a loop that waits: an exception of a handler can get lost where Python calls back."""
        if self.asked:
            self._raises = False
            raise Interrupted


STOP = Stop()


def fork() -> int:
    """As os.fork; in the child no signal asks for anything. The parent decides, and says so to it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    try:
        child = os.fork()
        if child == 0:
            for number in NUMBERS:
                signal.signal(number, signal.SIG_IGN)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
