"""The example GPT as a mixture of experts: a router sends each token to a few of several feed-forward networks."""

import torch
from everstep.examples.gpt import GPT, GPTConfig, feed_forward, next_token_loss
from torch import Tensor, nn
from torch.nn import functional as F


class Experts(nn.Module):
    """Feed-forward networks, of which each token goes through the ``top`` that its router prefers.

    Args:
        count: of experts.
        top: how many of them a token goes through, in 1..count.

    Attributes:
        imbalance: of the last forward: 1 if all experts are equally busy and liked, ``count`` if one has it all.
    """

    imbalance: Tensor

    def __init__(self, config: GPTConfig, count: int, top: int) -> None:
        super().__init__()
        if not 1 <= top <= count:
            raise ValueError(f"top={top} of {count} experts; it must be in 1..{count}")
        self.top = top
        self.router = nn.Linear(config.width, count, bias=False)
        self.experts = nn.ModuleList(feed_forward(config) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        liking = self.router(tokens).softmax(-1)
        weights, chosen = liking.topk(self.top, -1)
        # A token that goes to one expert keeps its liking as the weight, or the router would have no gradient.
        weights = weights / weights.sum(-1, keepdim=True) if self.top > 1 else weights
        mixed = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            token, rank = (chosen == index).nonzero(as_tuple=True)
            # Also without a token, so that each expert has a gradient, if only of zeros.
            mixed = mixed.index_add(0, token, expert(tokens[token]) * weights[token, rank, None])
        self.imbalance = _imbalance(liking, chosen)
        return mixed.view_as(x)


def _imbalance(liking: Tensor, chosen: Tensor) -> Tensor:
    """The load balancing loss of the Switch Transformer, arXiv 2101.03961, equation 4, for any number of choices."""
    count = liking.shape[-1]
    busy = F.one_hot(chosen, count).to(liking.dtype).mean((0, 1))
    return count * (busy * liking.mean(0)).sum()


def moe_gpt(config: GPTConfig, experts: int = 4, top: int = 2) -> GPT:
    """A GPT with experts in every block."""
    return GPT(config, lambda shape: Experts(shape, experts, top))


def balanced_loss(model: nn.Module, windows: Tensor, balance: float = 0.01) -> tuple[Tensor, Tensor]:
    """What is minimised, and in it the mean cross entropy in nats; windows are (batch, length + 1).

    Args:
        balance: weight of the mean imbalance of all layers.
    """
    loss = next_token_loss(model, windows)
    layers = [layer.imbalance for layer in model.modules() if isinstance(layer, Experts)]
    return loss + balance * torch.stack(layers).mean(), loss
