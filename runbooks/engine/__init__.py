"""Idempotent steps over SSH: facts, one look, jobs on the host, a second look. Knows nothing of GPUs or models."""
