"""One class a kind of step."""
