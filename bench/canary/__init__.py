"""The canary against real engines whose weights are poisoned, and its thresholds against captured answers."""
