"""How fast it is, whether to believe the number, and what bounds it."""
