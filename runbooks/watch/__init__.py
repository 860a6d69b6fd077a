"""`invoke watch`: the same as `invoke health`, as a live screen that costs one small exchange a look."""

from runbooks.watch.hosts import watch_hosts

__all__ = ["watch_hosts"]
