"""Is it alive: unit, port, a real completion, queue, GPUs, disk, memory, time. Answers within ten seconds, whatever
hangs."""

from runbooks.health.hosts import HealthResult, check, check_hosts
from runbooks.health.rules import Check

__all__ = ["Check", "HealthResult", "check", "check_hosts"]
