"""From the lines that a failure leaves behind to its cause and its page."""

from runbooks.diagnose.classify import Cause, classify, rank

__all__ = ["Cause", "classify", "rank"]
