"""Benchmark clients side by side: what a chunk costs each, and what each says of a server that misleads it."""
