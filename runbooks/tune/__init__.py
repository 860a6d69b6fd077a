"""`invoke tune --profiles a,b,c`: experiments. Predicted first, then deployed, asked, measured, and put back."""

from runbooks.tune.trials import tune_host

__all__ = ["tune_host"]
