"""Which vault holds which part, and which snapshots are whole. Knows nothing of what is to be copied."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..actors.node.vault_messages import Address, Copies, Manifest, PartName, VaultHello
from ..policies.retention import Marks, staying


@dataclass
class Holder:
    """A vault that has said what it holds."""

    node: str
    address: Address
    held: set[PartName]


class Holdings:
    """All vaults, and the snapshots whose parts all have a copy in one of them.

    Args:
        keep: newest whole snapshots that stay.

    Attributes:
        marks: which others stay.
        holders: by the name of the vault.
        manifests: by step.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self.marks = Marks()
        self.holders: dict[str, Holder] = {}
        self.manifests: dict[int, Manifest] = {}

    def come(self, hello: VaultHello) -> None:
        """A vault is there with all that it holds."""
        held = {part.name for part in hello.parts}
        self.holders[hello.incarnation] = Holder(hello.node, hello.address, held)
        for manifest in hello.manifests:
            self.manifests.setdefault(manifest.step, manifest)

    def lose(self, vaults: Iterable[str]) -> list[str]:
        """These are gone, and every snapshot that is not whole without them; returns those that were there."""
        lost = [name for name in vaults if self.holders.pop(name, None) is not None]
        if lost:
            self.manifests = {step: held for step, held in self.manifests.items() if self.whole(held)}
        return lost

    def commit(self, manifest: Manifest) -> None:
        """It is whole; what need not stay goes."""
        self.manifests[manifest.step] = manifest
        stay = staying(self.manifests, self._keep, self.marks)
        self.manifests = {step: held for step, held in sorted(self.manifests.items()) if step in stay}
        for holder in self.holders.values():
            holder.held = {name for name in holder.held if self.stays(name)}

    def needed(self, name: PartName) -> bool:
        """Whether it is a part of a whole snapshot."""
        manifest = self.manifests.get(name.step)
        return manifest is not None and manifest.generation == name.generation

    def stays(self, name: PartName) -> bool:
        """Whether it is a part of a whole snapshot, or of one that may come to be."""
        return self.needed(name) or name.step > self.last

    @property
    def last(self) -> int:
        """Step of the newest snapshot that was ever whole and is not lost, 0 if there is none."""
        return max(self.manifests, default=0)

    def forget(self, names: Iterable[PartName]) -> None:
        """Nobody holds these any more."""
        gone = set(names)
        for holder in self.holders.values():
            holder.held -= gone

    def having(self, name: PartName) -> list[str]:
        """Vaults that hold a part."""
        return [vault for vault, holder in sorted(self.holders.items()) if name in holder.held]

    def whole(self, manifest: Manifest) -> bool:
        """Whether there is a copy of every part."""
        return all(self.having(part.name) for part in manifest.parts)

    def where(self, step: int) -> tuple[Copies, ...]:
        """For ranks that go back to it: where every part is; nothing if it is not whole."""
        manifest = self.manifests.get(step)
        if manifest is None or not self.whole(manifest):
            return ()
        return tuple(
            Copies(part, tuple(self.holders[vault].address for vault in self.having(part.name)))
            for part in manifest.parts
        )

    @property
    def newest(self) -> Manifest | None:
        """Of all that are whole."""
        return next((held for _, held in sorted(self.manifests.items(), reverse=True) if self.whole(held)), None)

    @property
    def fewest(self) -> int:
        """Copies of that part of the newest snapshot of which there are least."""
        newest = self.newest
        return min((len(self.having(part.name)) for part in newest.parts), default=0) if newest else 0
