"""State from a living peer: a member that has come to a position serves the state before it to whoever joins there.

Nobody can decide a position without its newcomers. So from the moment at which a member's loop has come to it until it
is decided, the state of that member is the state before it, and nothing writes it: it is read while training goes on.
"""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from ...conf.chaos import FaultPoint
from ...conf.elastic import Timeouts
from ...conf.errors import HandoverError
from ...policies.world import Generation, Position
from .. import wire
from ..faults import Chaos
from ..messages import Open
from . import stream
from .ledger import Ledger
from .rendezvous import StoreClients

_POLL_S = 0.005


class _Refused(HandoverError):
    """The source lives and cannot give its state: nobody will do so in its place."""


class Handover:
    """Gives the state of this rank to others, and takes another one's.

    Args:
        ledger: of this rank.
        clients: connections to the store of a generation, where a source says where it listens.
        host: address of this machine that peers can reach.
        token: the run's secret, which both sides prove.
        timeouts: all deadlines.
        chaos: planned faults.
        read: the state, called on a thread of its own while the training thread computes.
    """

    def __init__(
        self,
        ledger: Ledger,
        clients: StoreClients,
        host: str,
        token: str,
        timeouts: Timeouts,
        chaos: Chaos,
        read: Callable[[], Any],
    ) -> None:
        self._ledger = ledger
        self._clients = clients
        self._host = host
        self._greeting = wire.greeting(token)
        self._token = token
        self._timeouts = timeouts
        self._chaos = chaos
        self._read = read
        self._coming: dict[Generation, Future[Any]] = {}

    # --- control thread

    def open(self, message: Open) -> None:
        """A generation began: serve its newcomers that this rank is named for, or ask for what it needs itself."""
        me = self._ledger.transaction.incarnation
        if message.sources.get(me, me) != me:
            future: Future[Any] = Future()
            self._coming = {message.world.generation: future}
            _thread(self._fetch, message, future)
        for newcomer, source in message.sources.items():
            if source == me != newcomer:
                _thread(self._serve, message, newcomer)

    # --- training thread

    def take(self, generation: Generation, deadline: float) -> Any | None:
        """The state before the position of ``generation``; None if that is over before it has come.

        Raises:
            HandoverError: it did not come, and the generation goes on.
        """
        failed: float | None = None
        while self._ledger.transaction.current(generation):
            now = time.monotonic()
            future = self._coming.get(generation)
            if future is not None and future.done():
                error = future.exception()
                if error is None:
                    # Nobody else keeps it: it may be as large as all that this rank holds.
                    self._coming = {}
                    return future.result()
                # If its source is gone, the controller is about to say so, and to name another one.
                failed = now if failed is None else failed
                if isinstance(error, _Refused) or now - failed > self._timeouts.heartbeat + self._timeouts.probe:
                    raise error
            elif now > deadline:
                raise HandoverError(f"the state did not come within {self._timeouts.recovery:g} s")
            time.sleep(_POLL_S)
        return None

    # --- threads of their own

    def _fetch(self, message: Open, future: "Future[Any]") -> None:
        me = self._ledger.transaction.incarnation
        source, place = message.sources[me], (message.world.generation, message.position)
        try:
            with self._reach(message, me) as connection:
                channel = stream.Channel(connection, self._worth(message))
                channel.send(self._greeting + wire.encode(place))
                self._check(channel)
                self._chaos.step = message.position.step
                held, state = stream.receive(channel, partial(self._chaos.at, FaultPoint.IN_RESTORE))
            if isinstance(state, _Refused):
                raise state
            if held != place:
                raise HandoverError(f"it is that of {held[1]} in generation {held[0]}")
            future.set_result(state)
        except Exception as error:
            kind = type(error) if isinstance(error, HandoverError) else HandoverError
            text = " ".join(str(error).split()) or type(error).__name__
            future.set_exception(
                kind(f"the state before step {message.position} could not be taken from rank {source}: {text}")
            )

    def _serve(self, message: Open, newcomer: str) -> None:
        """Whatever fails here, the newcomer hears of it by the end of the connection."""
        place, worth = (message.world.generation, message.position), self._worth(message)
        with socket.create_server((self._host, 0)) as server:
            server.settimeout(0.2)
            with self._clients.lent(message.store.host, message.store.port) as client:
                store = PrefixStore(message.store.prefix, client)
                store.set(_key(newcomer), f"{self._host} {server.getsockname()[1]}")
            while worth():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection:
                    try:
                        self._give(stream.Channel(connection, worth), place)
                    except (HandoverError, wire.WireError):
                        # A stranger, or one who is gone.
                        continue
                return

    def _give(self, channel: stream.Channel, place: tuple[Generation, Position]) -> None:
        self._check(channel)
        wanted = wire.decode(channel.receive(wire.body_length(channel.receive(wire.HEADER_BYTES))))
        if wanted != place:
            raise HandoverError(f"{wanted} was asked for")
        generation, position = place
        if not self._ledger.await_taken_up(position, generation, self._timeouts.recovery):
            raise HandoverError("training did not come to it")
        channel.send(self._greeting)
        try:
            half = partial(self._chaos.at, FaultPoint.IN_RESTORE)
            digest = stream.send(channel, (place, self._read()), half)
        except HandoverError:
            raise
        except Exception as error:
            # What the user keeps cannot be read, or not be sent: nothing has been.
            refusal = _Refused(f"it cannot be sent: {type(error).__name__}: {error}")
            digest = stream.send(channel, (place, refusal))
        # What was decided meanwhile may have changed what was sent.
        if self._ledger.transaction.position == position:
            channel.send(digest)

    def _reach(self, message: Open, newcomer: str) -> socket.socket:
        """A connection to the source, once it has said where it listens."""
        worth = self._worth(message)
        with self._clients.lent(message.store.host, message.store.port) as client:
            store = PrefixStore(message.store.prefix, client)
            while not store.check([_key(newcomer)]):
                if not worth():
                    raise HandoverError("nobody serves it")
                time.sleep(_POLL_S)
            host, port = store.get(_key(newcomer)).decode().split()
        return socket.create_connection((host, int(port)), timeout=self._timeouts.build)

    def _check(self, channel: stream.Channel) -> None:
        wire.check_greeting(channel.receive(wire.GREETING_BYTES), self._token)

    def _worth(self, message: Open) -> Callable[[], bool]:
        """Whether a transfer is still wanted."""
        deadline = time.monotonic() + self._timeouts.recovery
        generation = message.world.generation
        return lambda: self._ledger.transaction.current(generation) and time.monotonic() < deadline


def _key(newcomer: str) -> str:
    return f"handover/{newcomer}"


def _thread(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, name="everstep-handover", daemon=True).start()
