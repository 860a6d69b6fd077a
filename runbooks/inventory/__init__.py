"""Reads and validates the inventory into frozen structs."""

from runbooks.inventory.load import Loaded, load, select
from runbooks.inventory.shape import Inventory

__all__ = ["Inventory", "Loaded", "load", "select"]
