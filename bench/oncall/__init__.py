"""What the on-call tools promise, as tables: `python -m bench.oncall diagnosis` and `python -m bench.oncall pages`."""
