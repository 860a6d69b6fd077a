"""The load generator as a process below ours: it measures to its end, or until we are asked to stop."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from runbooks.bench.loadgen.stopping import NUMBERS, STOP


class Interruptible:
    """Ctrl-C or SIGTERM, however often: the process is told once, and what it measured is judged as usual."""

    def __init__(self) -> None:
        self.asked = False
        self.gone: BrokenPipeError | None = None
        self._process: subprocess.Popen[str] | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Once asked, the next one must not break into what is left to say: none is delivered any more, to the end of
        this process."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in NUMBERS}
        try:
            yield
        finally:
            if self.asked:
                STOP.over()
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, words: Sequence[str], env: dict[str, str], on_line: Callable[[str], None]) -> int:
        """Its exit code. Where `on_line` finds that nobody reads on, it is stopped as well, and `gone` says so."""
        # A session of its own: a terminal's Ctrl-C, or `timeout`, reaches us alone, and it hears of it once, from us.
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True) as process:
            self._process = process
            if self.asked:
                process.terminate()
            assert process.stdout is not None
            for line in process.stdout:
                try:
                    if self.gone is None:
                        on_line(line)
                except BrokenPipeError as error:
                    self.gone = error
                    process.terminate()
        return process.returncode

    def _handle(self, _number: int, _frame: object) -> None:
        first, self.asked = not self.asked, True
        if first and self._process is not None:
            self._process.terminate()
