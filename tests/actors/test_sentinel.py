"""A sentinel against a controller that is a plain socket, with real processes to guard."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from everstep.actors.directory import FolderDirectory
from everstep.actors.messages import Fenced, Ping, Release
from everstep.actors.node.sentinel import Sentinel, SentinelSpec
from everstep.actors.node.sentinel_messages import Guard, SentinelBeat, SentinelHello, Strike
from everstep.conf.elastic import Timeouts

from .test_link import TOKEN, Controller, until

TIMEOUTS = Timeouts(heartbeat_interval=0.02, heartbeat=5.0)


class Processes:
    """Some that only wait."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> "subprocess.Popen[bytes]":
        self.started.append(subprocess.Popen(["sleep", "600"]))
        return self.started[-1]

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def processes() -> Iterator[Processes]:
    held = Processes()
    yield held
    held.end()


class Watching:
    """A sentinel that watches; a raylet is any process."""

    def __init__(self, folder: Path, raylet: int) -> None:
        directory = FolderDirectory(folder)
        self.controller = Controller(directory)
        self.left: list[int] = []
        spec = SentinelSpec("sentinel-a", "node-1", TOKEN, directory, TIMEOUTS)
        self.sentinel = Sentinel(spec, raylet, self.left.append)
        self.thread = threading.Thread(target=self.sentinel.run, daemon=True)
        self.thread.start()

    def beats(self) -> list[SentinelBeat]:
        return [message for message in self.controller.heard if isinstance(message, SentinelBeat)]

    def until_it_says(self, **ranks: str) -> None:
        """Ask until it does."""

        def asked() -> bool:
            before = len(self.beats())
            self.controller.say(Ping())
            until(lambda: len(self.beats()) > before)
            return self.beats()[-1].ranks == ranks

        until(asked)

    def close(self) -> None:
        self.sentinel.close()
        self.controller.die()


@pytest.fixture
def raylet(processes: Processes) -> "subprocess.Popen[bytes]":
    return processes.start()


@pytest.fixture
def watching(tmp_path: Path, raylet: "subprocess.Popen[bytes]") -> Iterator[Watching]:
    held = Watching(tmp_path, raylet.pid)
    yield held
    held.close()


def test_it_says_which_node_it_watches_and_that_it_lives(watching: Watching) -> None:
    watching.until_it_says()
    assert watching.controller.heard[:2] == [
        SentinelHello("sentinel-a", "node-1", os.getpid()),
        SentinelBeat("sentinel-a", "node-1"),
    ]


def test_it_tells_what_the_processes_do_that_it_guards(watching: Watching, processes: Processes) -> None:
    one, two = processes.start(), processes.start()
    watching.controller.say(Guard({"1": one.pid, "2": two.pid}))
    watching.until_it_says(**{"1": "sleeping", "2": "sleeping"})
    one.send_signal(signal.SIGSTOP)
    watching.until_it_says(**{"1": "stopped", "2": "sleeping"})
    two.kill()
    watching.until_it_says(**{"1": "stopped", "2": "gone"})
    two.wait()
    watching.until_it_says(**{"1": "stopped", "2": "gone"})
    watching.controller.say(Guard({"1": one.pid}))
    watching.until_it_says(**{"1": "stopped"})


def test_it_ends_a_stopped_rank_when_it_is_told_to_and_nobody_else(watching: Watching, processes: Processes) -> None:
    one, two = processes.start(), processes.start()
    watching.controller.say(Guard({"1": one.pid, "2": two.pid}))
    one.send_signal(signal.SIGSTOP)
    watching.controller.say(Strike("3"))
    watching.controller.say(Strike("1"))
    assert one.wait(10.0) == -signal.SIGKILL
    watching.until_it_says(**{"1": "gone", "2": "sleeping"})


def test_whoever_it_guards_ends_with_the_raylet(
    watching: Watching, processes: Processes, raylet: "subprocess.Popen[bytes]"
) -> None:
    guarded, stopped, other = processes.start(), processes.start(), processes.start()
    stopped.send_signal(signal.SIGSTOP)
    watching.controller.say(Guard({"1": guarded.pid, "2": stopped.pid}))
    watching.until_it_says(**{"1": "sleeping", "2": "stopped"})
    raylet.kill()
    assert (guarded.wait(10.0), stopped.wait(10.0)) == (-signal.SIGKILL, -signal.SIGKILL)
    watching.thread.join(10.0)
    assert watching.left == [1]
    assert other.poll() is None


def test_a_process_id_that_is_used_again_is_not_mistaken(watching: Watching, processes: Processes) -> None:
    one = processes.start()
    one.kill()
    one.wait()
    watching.controller.say(Guard({"1": one.pid}))
    two = processes.start()
    watching.controller.say(Guard({"1": one.pid, "2": two.pid}))
    watching.until_it_says(**{"2": "sleeping"})


@pytest.mark.parametrize(("message", "code"), [(Fenced("its node was lost"), 1), (Release(), 0)])
def test_it_leaves_when_it_is_told_to(watching: Watching, message: object, code: int) -> None:
    watching.controller.say(message)
    until(lambda: watching.left == [code])


def test_it_loads_no_torch() -> None:
    code = "import sys, everstep.actors.node.sentinel_actor; print({'torch', 'ray', 'numpy'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"
