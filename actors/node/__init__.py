"""The actors of each node."""
