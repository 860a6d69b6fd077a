"""Reads and validates the inventory into frozen structs."""
