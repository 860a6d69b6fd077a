"""Stand-ins for what cannot be had on one machine. Each says that it is one where it shows itself."""
