"""What is run again comes to everything in turn."""

from math import prod

from everstep.monitors.replay import PART, layer_at, part_at
from hypothesis import given
from hypothesis import strategies as st

SHAPES = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.lists(st.integers(0, 400), max_size=3), max_size=5)


def test_layers_take_turns() -> None:
    assert [layer_at(turn, ["a", "b", "c"]) for turn in range(5)] == ["a", "b", "c", "a", "b"]
    assert layer_at(3, []) is None


@given(SHAPES)
def test_every_row_of_every_parameter_once_in_a_round(shapes: dict[str, list[int]]) -> None:
    shapes = {name: shape for name, shape in shapes.items() if prod(shape) < 40 * PART}
    first = part_at(0, shapes)
    if first is None:
        assert not any(prod(shape) for shape in shapes.values())
        return
    seen: dict[str, list[int]] = {}
    turn, part = 0, first
    while turn == 0 or part != first:
        shape = shapes[part.parameter]
        count = (part.stop - part.start) * prod(shape[1:])
        assert 0 < count <= PART or part.stop == part.start + 1
        seen.setdefault(part.parameter, []).extend(range(part.start, part.stop))
        turn += 1
        following = part_at(turn, shapes)
        assert following is not None
        part = following
    expected = {name: list(range(shape[0] if shape else 1)) for name, shape in shapes.items() if prod(shape)}
    assert seen == expected
