"""`python3 -m runbooks.bench.loadgen`."""

import signal

before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it loads, Ctrl-C ends it without a traceback
from .cli import main  # noqa: E402

signal.signal(signal.SIGINT, before)
main()
