"""Does the server speak sense? The battery and its judge run on the host; this is the controller's side."""

from runbooks.canary.hosts import canary_hosts
from runbooks.canary.run import Battery, CanaryResult, Finding, PromptResult, run_canary

__all__ = ["Battery", "CanaryResult", "Finding", "PromptResult", "canary_hosts", "run_canary"]
