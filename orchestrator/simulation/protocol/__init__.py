"""The controller's machine and the ranks' ledgers in virtual time, under faults at any instant, with checkers."""
