"""From the machine's memory to what the outside sees."""

from collections.abc import Iterable, Mapping

from ...conf.errors import TrainingFailedError
from ..view import MemberView, Phase, RunState
from .records import rates
from .stability import line
from .state import Adoption, Rank, Recovery, Standing, State
from .trust import lines
from .verdicts import unconfirmed


def look(state: State, now: float) -> RunState:
    """One look at the run; pure, so it can be taken at any moment."""
    world = state.world
    finished = next((rank.finished for rank in state.ranks.values() if rank.finished), None)
    steps = next((rank.ready.steps for rank in state.ranks.values() if rank.ready), None)
    step = max((rank.position.step for rank in state.living), default=0)
    if finished is not None:
        step = max(step, finished.steps)
    weight_per_s, flops_per_s = rates(state)
    return RunState(
        run=state.settings.run,
        phase=state.phase,
        reason=_reason(state, now),
        generation=str(world.generation) if world else "",
        step=step,
        steps=steps,
        world=len(state.present),
        members=tuple(
            MemberView(
                rank.incarnation,
                rank.seat.replica if rank.seat else None,
                rank.seat.coordinate if rank.seat else None,
                _status(state, rank),
                rank.node,
                rank.pid,
                rank.position.step,
                max(0.0, now - rank.last_heard),
            )
            for rank in state.living
        ),
        loss=finished.loss if finished else state.record.loss if state.record else None,
        record=state.record,
        weight_unit=state.settings.weight_unit,
        weight_per_s=weight_per_s,
        model_flops_per_s=flops_per_s,
        first_cause=state.first_cause,
        decision=state.decision,
        resumed=f"step {state.resume.step}, from {state.resume.source}" if state.resume else "",
        cadence=state.cadence,
        sources=state.sources,
        stability=line(state),
        trust=lines(state),
        target=state.target,
        parked=len(state.parked),
        recoveries=state.recoveries,
        verdicts=state.verdicts,
        faults_fired=state.faults_fired,
        warnings=state.warnings,
        error=state.error,
        traceback=state.traceback,
        metrics=metrics(state),
    )


def failures(state: State) -> dict[int, Exception]:
    """What ended a run that failed, by the numbers of the ranks that it came from; -1 if it came from none."""
    if state.phase is not Phase.FAILED:
        return {}
    size = state.settings.ranks_per_replica
    found: dict[int, Exception] = {
        rank.seat.replica * size + rank.seat.coordinate: TrainingFailedError(
            rank.raised.error if rank.raised else rank.cause, rank.raised.traceback if rank.raised else None
        )
        # Of several that had the same seat, the last one.
        for _, rank in sorted(state.ranks.items())
        if rank.seat and (rank.raised or rank.cause) and rank.standing is not Standing.LEFT
    }
    return found or {-1: TrainingFailedError(state.error or "the run failed")}


def _reason(state: State, now: float) -> str:
    if state.error:
        return state.error
    if state.adoption is not None:
        return f"a new controller has taken over and waits for {_coming(state, state.adoption)}"
    if state.recovery is not None:
        return f"{state.recovery.cause}; {_awaited(state, state.recovery, now)}"
    if state.phase is Phase.SUCCEEDED:
        return "all steps are applied"
    if not state.ranks:
        return "starting ranks"
    if state.phase is Phase.STARTING:
        missing = [str(rank.seat) for rank in state.living if rank.seat and rank.ready is None]
        return f"waiting for ranks {', '.join(missing)} to reach begin" if missing else "opening the first generation"
    if state.standstill is not None:
        return state.standstill.reason
    if state.finishing:
        return "waiting for the training function to return on every rank"
    return "; ".join(["training", *_hindrances(state)])


def _hindrances(state: State) -> list[str]:
    """What slows training down."""
    rounds = state.rounds
    slow = [f"{state.ranks[name].title} {held.reason}" for name, held in sorted(rounds.slow.items())]
    wide = [f"all ranks are slower at {part.value} than they were" for part in sorted(rounds.groupwide)]
    return [text for text in (*slow, rounds.said, *wide, rounds.link) if text]


def _coming(state: State, adoption: Adoption) -> str:
    known = [name for name in adoption.awaited if name in state.ranks]
    return _some(state, known) if known else "ranks to come to it"


def _awaited(state: State, recovery: Recovery, now: float) -> str:
    """What a change of the world is waiting for."""
    if recovery.waiting:
        return f"{recovery.reason}; until {max(0.0, recovery.deadline - now):.0f} s from now"
    if recovery.unbuilt:
        return f"building the group of generation {recovery.generation}"
    if recovery.opened:
        return f"waiting for the first decision in generation {recovery.generation}"
    parts = []
    if recovery.silent:
        parts.append("reports of " + _some(state, recovery.silent))
    if doomed := unconfirmed(state, now):
        parts.append("the end of fenced " + _some(state, [rank.incarnation for rank in doomed]))
    return "waiting for " + " and ".join(parts) if parts else "asking the survivors"


def _some(state: State, incarnations: Iterable[str]) -> str:
    titles = [state.ranks[name].title.removeprefix("rank ") for name in sorted(incarnations)]
    return f"ranks {', '.join(titles[:8])}" + (f" and {len(titles) - 8} more" if len(titles) > 8 else "")


def _status(state: State, rank: Rank) -> str:
    if rank.incarnation in state.parked:
        return "parked"
    return "leaving" if rank.incarnation in state.leaving else rank.standing.value


def metrics(state: State) -> Mapping[str, object]:
    """The final figures of a run that has succeeded."""
    if state.metrics:
        return state.metrics
    finished = [rank.finished for rank in state.ranks.values() if rank.finished]
    if state.phase is not Phase.SUCCEEDED or not finished:
        return {}
    return {
        "weights_sha256": finished[0].weights_sha256,
        "state_sha256": finished[0].state_sha256,
        "loss": finished[0].loss,
        "steps": finished[0].steps,
        "numbers": dict(state.record.numbers) if state.record else {},
        "microbatches_computed": sum(
            rank.finished.computed if rank.finished else rank.computed for rank in state.ranks.values()
        ),
        "world": len(state.present),
        "generation": str(state.world.generation) if state.world else "",
        **{name: max(end.metrics.get(name, 0.0) for end in finished) for name in finished[0].metrics},
    }
