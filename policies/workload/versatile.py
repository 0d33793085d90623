"""ReCoVer's majors, minor and spares on named indices, with the two faults of the published arithmetic mended."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from ..world import Progress
from .assignment import Assignment, Contradiction, WorkloadPolicy
from .published import advance
from .sharing import given_out, in_blocks, in_order, missing_from


class Versatile(WorkloadPolicy):
    """Majors compute G = ⌈B/W⌉ microbatches each, at most one minor the rest, and leftovers are shadows.

    The published spare may stand in for any major, since samples are exchangeable there. Here every index is to be
    summed once, so a shadow repeats one named replica: its promotion costs nothing if that one dies, and nothing is
    gained from it if another one does. The roles are a function of the survivors and of B alone.

    The faults of the published rule cannot come up. There is no boundary test: each dead replica is replaced by a
    shadow of its own, and what nobody has is given out, whatever else happened. And a shadow is admitted only with
    indices that nobody else has.
    """

    def plan(self, replicas: Sequence[int], microbatches: int) -> Assignment:
        ordered = in_order(replicas)
        layout = advance(len(ordered), microbatches)
        majors = ordered[: layout.majors]
        minor = ordered[layout.majors : layout.majors + layout.minors]
        spares = ordered[layout.majors + layout.minors :]
        sizes = [layout.quota] * len(majors) + [layout.minor_quota] * len(minor) + [0] * len(spares)
        shadows = dict(zip(spares[: layout.major_spares], cycle(majors), strict=False))
        shadows |= dict(zip(spares[layout.major_spares :], minor, strict=False))
        minors = f", {len(minor)} minor of {layout.minor_quota}" if minor else ""
        reason = f"{len(majors)} majors of {layout.quota} microbatches{minors}, {len(shadows)} shadows"
        return Assignment(in_blocks(ordered, sizes), reason, shadows)

    def extend(self, progress: Mapping[int, Progress], microbatches: int) -> Assignment:
        """Promote shadows of the dead, then give out what is still missing.

        A promoted shadow contributes what its major had and owed. Shadows of the living let go of what they repeat,
        and work with the others, if that ends the step sooner; the others go on repeating all that theirs is given.

        Raises:
            Contradiction: the facts contradict each other.
            ValueError: nobody is left.
        """
        ordered = in_order(progress)
        promoted, shadows = _promote(progress)
        kept = {replica: held.done | held.owed for replica, held in progress.items() if replica not in shadows}
        missing = missing_from(kept, microbatches)
        # A shadow that lets go has nothing left to do, so it would come first; but it loses ties.
        owed = {replica: len(held.owed) if replica in kept else 0 for replica, held in progress.items()}
        given = given_out(missing, owed, last=shadows.keys())
        indices = {replica: tuple(sorted(kept.get(replica, frozenset()) | given[replica])) for replica in ordered}
        reasons = [f"{len(missing)} lost microbatches over {len(ordered)} replicas"]
        reasons += [f"shadow {shadow} takes the place of {replica}" for shadow, replica in sorted(promoted.items())]
        reasons += [f"shadow {shadow} lets go of {shadows[shadow]}" for shadow in sorted(shadows) if given[shadow]]
        staying = {shadow: replica for shadow, replica in sorted(shadows.items()) if not given[shadow]}
        return Assignment(indices, "; ".join(reasons), staying)


def _promote(progress: Mapping[int, Progress]) -> tuple[dict[int, int], dict[int, int]]:
    """Shadows that take the place of theirs, with whose; and those that remain, with whom they repeat from now on."""
    groups: dict[int, list[int]] = {}
    for replica in sorted(progress):
        repeated = progress[replica].repeats
        # Whoever has nothing repeats nothing.
        if repeated is not None and _held(progress[replica]):
            groups.setdefault(repeated, []).append(replica)
    promoted: dict[int, int] = {}
    shadows: dict[int, int] = {}
    for repeated, group in groups.items():
        original = progress.get(repeated)
        if original is not None and original.repeats is not None:
            raise Contradiction(
                f"replica {group[0]} repeats {repeated}, which is a shadow itself", (group[0], repeated)
            )
        # One that lives but has not come to this step has nothing that could be repeated: it is as good as dead.
        if original is None or not _held(original):
            first = max(group, key=lambda replica: (len(progress[replica].done), -replica))
            promoted[first] = repeated
            repeated = first
        # What a shadow has beyond its original was given to both, and the original never heard of it: it is missing.
        shadows |= {shadow: repeated for shadow in group if shadow != repeated}
    return promoted, shadows


def _held(progress: Progress) -> frozenset[int]:
    return progress.done | progress.owed
