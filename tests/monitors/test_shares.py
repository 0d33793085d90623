"""Every head is looked at by some peer in so many comparisons, and nobody looks at too many at once."""

from everstep.monitors.shares import OF_ALL, OF_ONE, looks_at, turns
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 3000), st.integers(1, 70), st.integers(0, 100))
def test_all_heads_once_in_so_many_comparisons(heads: int, peers: int, first: int) -> None:
    items, count = range(heads), turns(heads, peers)
    first -= first % count
    looks = [[looks_at(items, place, peers, look) for place in range(peers)] for look in range(first, first + count)]
    assert sorted(head for look in looks for mine in look for head in mine) == list(items)
    assert all(len(mine) <= OF_ONE for look in looks for mine in look)
    assert all(sum(map(len, look)) <= OF_ALL for look in looks)


def test_nobody_is_always_asked_for_the_same_heads() -> None:
    seen = {looks_at(range(8), 0, 4, look) for look in range(4)}
    assert len(seen) == 4
