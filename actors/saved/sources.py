"""Where a state is taken from to which everybody goes back, besides vaults."""

STORAGE = "storage"
# The initial state, which the training function makes itself; it has taken no step.
START = "start"
