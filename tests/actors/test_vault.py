"""What a vault holds, keeps and refuses."""

import pytest
from everstep.actors.node.vault import Vault
from everstep.actors.node.vault_messages import Manifest, Part, PartName
from everstep.conf.errors import VaultFullError
from everstep.policies.world import Generation

FIRST, SECOND = Generation(1, 1), Generation(1, 2)


def part(step: int, place: int = 0, generation: Generation = FIRST, size: int = 10, parts: int = 2) -> Part:
    return Part(PartName(step, generation, place), parts, size, 0)


def whole(step: int, generation: Generation = FIRST) -> Manifest:
    return Manifest(step, generation, (part(step, 0, generation), part(step, 1, generation)), 2)


def holding(vault: Vault, *parts: Part) -> Vault:
    for each in parts:
        assert vault.admit(each)
        assert vault.put(each, f"bytes of {each.name}")
    return vault


def steps(vault: Vault) -> list[int]:
    return [each.name.step for each in vault.parts]


def test_what_is_here_or_comes_is_not_got_again() -> None:
    vault = holding(Vault(100), part(1))
    assert not vault.admit(part(1))
    assert vault.admit(part(2))
    assert not vault.admit(part(2))
    vault.fail(part(2).name)
    assert vault.admit(part(2))
    assert vault.get(part(2).name) is None


def test_it_is_full_before_its_memory_is() -> None:
    """What is on its way counts, and what did not come does not."""
    vault = holding(Vault(30), part(1))
    assert vault.admit(part(2, size=15))
    with pytest.raises(VaultFullError, match="part 1 of step 2"):
        vault.admit(part(2, 1))
    vault.fail(part(2).name)
    assert vault.admit(part(2, 1))
    assert vault.bytes == 20


def test_a_snapshot_that_is_whole_stays_and_others_go() -> None:
    vault = holding(Vault(1000), part(1), part(2), part(2, 1, SECOND), part(3), part(4, 1))
    vault.commit([whole(3)])
    assert steps(vault) == [3, 4]
    vault.commit([whole(3), whole(4)])
    assert [held.step for held in vault.manifests] == [3, 4]
    assert steps(vault) == [3, 4]


def test_what_comes_when_it_is_not_wanted_any_more_is_let_go() -> None:
    vault = Vault(100)
    assert vault.admit(part(1))
    vault.forget([part(1).name])
    assert not vault.put(part(1), "late")
    assert (vault.parts, vault.bytes) == ((), 0)


def test_without_one_of_its_parts_a_snapshot_is_whole_no_more() -> None:
    vault = holding(Vault(100), part(1), part(2))
    vault.commit([whole(1), whole(2)])
    vault.forget([part(1, 1).name])
    assert [held.step for held in vault.manifests] == [2]
