"""The signature of one microbatch's gradient, taken from what is folded, as it is folded."""

from torch import Tensor

from ...monitors.signatures import Folded, combined, folded, signature, signatures_of


class Signer:
    """Sees every gradient of one microbatch on its way into the sum.

    Args:
        folds: whether they are summed here as well; a microbatch of another rank is only signed.
    """

    def __init__(self, folds: bool) -> None:
        self.folds = folds
        self._held: list[tuple[str, Folded]] = []
        self._whole = True

    def take(self, name: str, gradient: Tensor) -> None:
        """Look at a gradient, or at a part of it, before anything is done to it."""
        try:
            self._held.append((name, folded(gradient)))
        except (TypeError, RuntimeError):
            # A tensor of an odd kind, in the middle of the user's backward: there is nothing to compare then.
            self._whole = False

    def signature(self, loss: Tensor | None) -> int | None:
        """Signed 64 bits of all gradients that were taken, by name, and of the loss; None if one cannot be signed."""
        if not self._whole:
            return None
        # In which order a backward makes them does not matter; parts of one keep theirs.
        held = sorted(self._held, key=lambda item: item[0])
        names = combined(signature(name) for name, _ in held)
        found = signatures_of([fold for _, fold in held])
        return combined([names, *found, *([] if loss is None else signatures_of([folded(loss.detach())]))])
