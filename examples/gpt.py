"""A decoder-only GPT over bytes: 3.3 million parameters, small enough to train on a laptop's CPU."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class GPTConfig:
    """The shape of the model.

    Args:
        vocab_size: number of tokens; 256 reads plain bytes.
        block: longest sequence, in tokens.
        layers: number of transformer blocks.
        width: size of the residual stream; must be a multiple of ``heads``.
        heads: attention heads of a block.
        dropout: probability of dropping an activation while training.
    """

    vocab_size: int = 256
    block: int = 256
    layers: int = 4
    width: int = 256
    heads: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a token sees itself and what came before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        # On the CPU its forward and backward repeat bit for bit, with and without dropout.
        y = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        merged: Tensor = self.output(y.transpose(1, 2).reshape(batch, length, width))
        return merged


def feed_forward(config: GPTConfig) -> nn.Module:
    """Four times as wide inside."""
    return nn.Sequential(
        nn.Linear(config.width, 4 * config.width, bias=False),
        nn.GELU(),
        nn.Linear(4 * config.width, config.width, bias=False),
    )


class Block(nn.Module):
    """One pre-norm transformer block: attention, then a feed-forward network, each on a residual branch."""

    def __init__(self, config: GPTConfig, inner: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = CausalSelfAttention(config)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.feed_forward = inner
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        y: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return y


class GPT(nn.Module):
    """Token and position embeddings, a stack of blocks, and a head tied to the token embedding.

    Args:
        inner: makes the feed-forward network of a block.
    """

    def __init__(self, config: GPTConfig, inner: Callable[[GPTConfig], nn.Module] = feed_forward) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.block, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, inner(config)) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.head.weight = self.token_embedding.weight
        self._initialise()

    def _initialise(self) -> None:
        """GPT-2's initialisation: what is added to the residual stream shrinks with the depth."""
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            residual = name.endswith(("attention.output.weight", ".2.weight"))
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * self.config.layers) if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token, shape (batch, length, vocab), for tokens of shape (batch, length)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def next_token_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean cross entropy, in nats, of each token in windows (batch, length + 1) given those before it."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
