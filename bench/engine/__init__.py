"""The engine beside its peers: the same play, the same guest, one run."""
