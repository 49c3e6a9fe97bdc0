"""The models: a small GPT that predicts bytes, and a small convnet with batch norm for 8 x 8 images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ringreduce.training.trainer.config import Config
from ringreduce.training.trainer.data import BYTES, CLASSES

__all__ = ["GPT", "convnet", "make_model"]


def make_model(config: Config) -> nn.Module:
    """Returns the model with its initial weights, which depend only on ``config.seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return GPT(config) if config.task == "gpt" else convnet(config.channels)


class GPT(nn.Module):
    """A transformer decoder with layer norm before attention and perceptron (Radford et al., 2019).

    Takes int64 [batch, context] and returns float logits [batch, context, 256].
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTES, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, BYTES, bias=False)
        self.apply(_initialise)

    def forward(self, tokens: Any) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(places)
        return self.head(self.norm(self.blocks(x)))


class Block(nn.Module):
    """Attention, and then a two-layer perceptron of four times the width, each with a residual connection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.attention_norm = nn.LayerNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(config.width),
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Any) -> Any:
        parts = self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, width / heads]
        found = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        found = self.project(found.transpose(1, 2).flatten(2))
        x = x + functional.dropout(found, self.dropout, self.training)
        return x + self.perceptron(x)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def convnet(channels: int) -> nn.Sequential:
    """Returns a convnet with two convolutions with batch norm, and a linear layer.

    It takes float32 [batch, 1, 8, 8] and returns float logits [batch, 10].
    """
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * channels * 4 * 4, CLASSES),
    )
