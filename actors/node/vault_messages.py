"""What vaults, ranks and the controller say to each other about snapshots. Data is named by who committed it."""

from dataclasses import dataclass

from ...policies.world import Generation

# The source of saved states that this is about.
VAULT = "vault"
# What a part is wanted for.
COPY, RESTORE = "copy", "restore"
Address = tuple[str, int]


@dataclass(frozen=True, order=True)
class PartName:
    """One part of one snapshot.

    Attributes:
        step: optimizer steps that the state has taken.
        generation: of the group that committed the last of them.
        part: which it is.
    """

    step: int
    generation: Generation
    part: int

    @property
    def snapshot(self) -> tuple[int, Generation]:
        """What it is a part of; parts of two of these are never mixed."""
        return self.step, self.generation

    def __str__(self) -> str:
        return f"part {self.part} of step {self.step} (generation {self.generation})"


@dataclass(frozen=True)
class Part:
    """A part as everybody knows it; ``parts`` make up the snapshot."""

    name: PartName
    parts: int
    bytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """What says that a snapshot is whole: it is given to its holders last.

    Attributes:
        parts: all of them; the state that peers have in common is divided among them.
        peers: replicas that held all of it when it was made. While one of them lives, it can be rebuilt from that one.
    """

    step: int
    generation: Generation
    parts: tuple[Part, ...]
    peers: int

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


# --- from a rank to the controller


@dataclass(frozen=True)
class Offered:
    """A part is copied and lies ready at ``address``; or will not be, because of ``problem``."""

    incarnation: str
    part: Part
    address: Address
    problem: str = ""


# --- from a vault to the controller


@dataclass(frozen=True)
class VaultHello:
    """First words of a vault, also to a controller that has taken over: all that it holds.

    Attributes:
        address: where it gives it out.
        budget: most bytes that it will hold.
    """

    incarnation: str
    pid: int
    node: str
    address: Address
    budget: int
    parts: tuple[Part, ...] = ()
    manifests: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class VaultBeat:
    """It lives."""

    incarnation: str


@dataclass(frozen=True)
class Pulled:
    """A vault holds a part now, or does not because of ``problem``; it took ``seconds``.

    Attributes:
        full: whether it refuses it for want of room.
    """

    incarnation: str
    part: Part
    seconds: float = 0.0
    problem: str = ""
    full: bool = False


FromVault = VaultHello | VaultBeat | Pulled
PREFIX = "vault-"

# --- from the controller


@dataclass(frozen=True)
class Pull:
    """To a vault: get a part from ``source`` and keep it."""

    part: Part
    source: Address


@dataclass(frozen=True)
class Commit:
    """To a vault: these snapshots are whole, oldest first; whatever else it holds up to the newest of them may go."""

    manifests: tuple[Manifest, ...]


@dataclass(frozen=True)
class Forget:
    """To a vault: drop these parts, and the manifests of snapshots of which a part is among them."""

    names: tuple[PartName, ...]


@dataclass(frozen=True)
class Withdraw:
    """To a rank: nobody will take this part; or, without a name, any part from now on."""

    name: PartName | None = None


ToVault = Pull | Commit | Forget


@dataclass(frozen=True)
class Copies:
    """Where a part can be got; ``addresses`` are of the vaults that hold it."""

    part: Part
    addresses: tuple[Address, ...]
