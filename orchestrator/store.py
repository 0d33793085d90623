"""The rendezvous store. It lives with the controller, never in a rank, and binds its port itself."""

from typing import Any


def open_store(host: str) -> tuple[Any, int]:
    """A TCPStore server on a free port; keep the object for as long as ranks must meet."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return store, store.port
