"""What the on-call tools promise: each case of the diagnosis, each block of the pages; see bench/tables.py."""
