"""The brain in simulated worlds: the same machine, virtual time."""
