"""Every error that everstep raises on purpose. Each says in one line what is wrong, where, and what to do."""


class EverstepError(Exception):
    """Base class of all errors that everstep raises on purpose."""


class ConfigError(EverstepError):
    """The configuration cannot work; nothing was started."""


class RunAliveError(EverstepError):
    """A run of this name is already alive on the cluster."""


class RunNotFoundError(EverstepError):
    """No run of this name is alive on the cluster."""


class ControllerAwayError(EverstepError):
    """The run's controller died, and the next one is not there yet."""


class ClusterError(EverstepError):
    """The Ray cluster cannot be reached."""


class TrainingFailedError(EverstepError):
    """The run ended without finishing its steps; the text holds the first cause.

    Args:
        text: one line.
        traceback: the first traceback of the user's code, if there was one.
    """

    def __init__(self, text: str, traceback: str | None = None) -> None:
        super().__init__(text)
        self.traceback = traceback


class LoopError(EverstepError):
    """The training function used the step loop in a way that would corrupt or lose a step."""


class DataError(EverstepError):
    """The data set cannot be trained on."""


class NonFiniteError(EverstepError):
    """A loss or a gradient is not finite; the text names the step, the microbatch and the rank."""


class ProbeError(EverstepError):
    """This rank computes other gradients than its peers for the same microbatch; the others go on without it."""


class CommunicatorError(EverstepError):
    """A collective failed or its group could not be built; the step is not lost, it is reduced again."""


class HandoverError(EverstepError):
    """A rank could not take the state that another one has; another spare may."""


class SavedStateError(EverstepError):
    """A saved state is not whole, or the storage where it lies cannot be used."""


class NewerFormatError(SavedStateError):
    """What is saved was written by a newer version of everstep: this one must not touch it."""


class ExchangeError(EverstepError):
    """Bytes that another process holds could not be got from it."""


class VaultFullError(EverstepError):
    """A vault refuses a part: with it, it would hold more than its share of the node's memory."""
