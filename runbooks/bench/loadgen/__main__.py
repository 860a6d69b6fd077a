"""`python3 -m runbooks.bench.loadgen`."""

from .cli import main

main()
