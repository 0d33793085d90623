"""Everything that a controller needs to begin a run, as one value that travels to where the controller lives."""

import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..actors.rank.spec import RankSpec
from ..actors.saved.storage import Storage, below
from ..conf.elastic import ElasticConfig, OnCorruption, OnTrouble
from ..conf.remedy import OnInstability
from ..conf.scaling import Scaling
from ..policies.recovery import recovery_policy
from ..policies.stragglers import straggler_policy
from ..policies.workload import workload_policy
from ..policies.world import Seat
from . import journal
from .checkpoints import FOLDER, Checkpoints
from .cluster import Program
from .journal import Files, Store
from .machine.settings import Settings
from .machine.trust import CORRUPTION, STABILITY
from .records import json_lines, tensorboard
from .records.callbacks import Callback
from .records.copies import Copies
from .records.json_lines import JsonLines
from .records.sink import Sink
from .records.tensorboard import TensorBoard


@dataclass(frozen=True)
class RunPlan:
    """One run.

    Attributes:
        run: its name.
        train: the user's function, pickled by value.
        config: handed to it as ``ctx.config``.
        folder: where journal and records go, None for nowhere.
        storage: the URI of a folder on object storage, for checkpoints and copies of the records; None if they are all
            to lie in ``folder``.
        trace: folder for a file of ``Trace`` lines per rank, None for none.
        runtime_env: Ray runtime environment of the ranks.
        weight_unit: what the weights of losses count.
        callbacks: of the user, in the form of ``ray.train.UserCallback``.
        run_context: what they are handed.
        token: the run's secret.
        launch: this start of the run, among others of the same name; sorted by time.
    """

    run: str
    elastic: ElasticConfig
    scaling: Scaling
    train: bytes
    config: Any = None
    folder: str | None = None
    storage: str | None = None
    trace: str | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    weight_unit: str = "weight"
    callbacks: tuple[Any, ...] = ()
    run_context: Any = None
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    launch: str = field(default_factory=lambda: time.strftime("%Y%m%dT%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:8])

    def settings(self, term: int) -> Settings:
        """What the machine must know, for one controller life."""
        elastic, lives = self.elastic, uuid.uuid4().hex[:8]
        # Incarnations begin with a number that counts all that were ever started.
        ranks = tuple(f"{place:04d}-{lives}" for place in range(self.scaling.max_ranks + elastic.spares))
        return Settings(
            run=self.run,
            term=term,
            ranks=ranks,
            minimum=self.scaling.min_ranks // elastic.ranks_per_replica,
            workload=workload_policy(elastic.sharing, self.scaling.max_ranks // elastic.ranks_per_replica),
            timeouts=elastic.timeouts,
            ranks_per_replica=elastic.ranks_per_replica,
            store_prefix=f"{self.run}/{uuid.uuid4().hex[:8]}",
            weight_unit=self.weight_unit,
            skip_poison=elastic.on_poison is OnTrouble.SKIP,
            recovery=recovery_policy(elastic.recovery, horizon=elastic.recovery_horizon, patience=elastic.patience),
            spares=elastic.spares,
            replaces=elastic.replace,
            lives=lives,
            cadences={CORRUPTION: elastic.check_every, STABILITY: elastic.monitors if elastic.goes_back else 0},
            rolls_back=elastic.on_corruption is OnCorruption.ROLLBACK,
            hang=elastic.hang,
            on_instability=OnInstability(elastic.on_instability),
            remedy=elastic.remedy,
            epoch=time.time() - time.monotonic(),
            alike=elastic.sharing != elastic.workload,
            stragglers=straggler_policy(elastic.stragglers, elastic.recovery_horizon),
        )

    def program(self) -> Program:
        """What every rank runs."""
        template = RankSpec(
            run=self.run,
            incarnation="",
            seat=Seat(0),
            token=self.token,
            elastic=self.elastic,
            max_world=self.scaling.max_ranks,
            config=self.config,
            device="cuda" if self.scaling.gpus_per_rank else "cpu",
            threads=max(1, int(self.scaling.cpus_per_rank)),
            trace=self.trace,
            weight_unit=self.weight_unit,
            saved=self.saved,
        )
        return Program(self.train, template)

    def sinks(self) -> list[Sink]:
        """Everything that takes the records of steps, made anew."""
        files: list[Sink] = []
        if self.folder:
            files = [JsonLines(Path(self.folder, json_lines.FILE)), TensorBoard(Path(self.folder, tensorboard.FOLDER))]
            if self.storage:
                files.append(Copies(Path(self.folder), Storage(self.storage, self.elastic.timeouts.storage)))
        return [*files, *(Callback(callback, self.run_context) for callback in self.callbacks)]

    def checkpoints(self) -> Checkpoints | None:
        """Those of this run, made anew; None if it has no folder."""
        if self.saved is None:
            return None
        elastic = self.elastic
        return Checkpoints(self.run, self.saved, elastic.keep, elastic.schedule, elastic.timeouts.storage)

    @property
    def saved(self) -> str | None:
        """Where checkpoints lie."""
        durable = self.storage or self.folder
        return below(durable, FOLDER) if durable else None

    def journals(self) -> list[Store]:
        """Where the journal of this launch is kept, if the run has a folder."""
        return [Files(Path(self.folder, journal.FOLDER), self.launch)] if self.folder else []
