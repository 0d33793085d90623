"""What microbatches took, each once."""

import pytest
import torch
from everstep.actors.rank.stopwatch import Stopwatch
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.floats(0, 10), max_size=5), st.integers(0, 3))
def test_each_is_read_once_with_its_wait(waits: list[float], forgotten: int) -> None:
    watch = Stopwatch(torch.device("cpu"))
    for wait in waits:
        for _ in range(forgotten):
            watch.start()
        watch.start()
        watch.stop(wait)
    taken = watch.read()
    assert [loading for _, loading in taken] == waits
    assert all(compute >= 0 for compute, _ in taken)
    assert watch.read() == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_device_is_timed_and_not_the_host_that_drives_it() -> None:
    device = torch.device("cuda")
    matrix = torch.randn(4096, 4096, device=device)
    watch = Stopwatch(device)
    seconds = []
    for count in (1, 40):
        watch.start()
        for _ in range(count):
            matrix @ matrix
        watch.stop(0.0)
        ((taken, _),) = watch.read()
        seconds.append(taken)
    assert seconds[1] > 5 * seconds[0] > 0
