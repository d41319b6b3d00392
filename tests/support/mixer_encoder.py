"""A family in one file: an encoder that mixes every token with the mean of its sequence. No attention, no Transformer.

B sequences, N tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.encoded import BatchLayout, Encoded
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.memory import ActivationBytes
from bertworks.sampling.batch import Batch


@dataclass(frozen=True, kw_only=True)
class MixerConfig(EncoderConfig):
    model_type: ClassVar[str] = "mixer"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tiny": {"hidden_size": 16}}
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {"dropout_prob": ("hidden_dropout_prob",)}

    vocab_size: int = 100
    hidden_size: int = 16
    max_length: int = 64
    hidden_dropout_prob: float = 0.0
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.2

    @property
    def num_hidden_layers(self) -> int:
        return 1

    def activation_bytes(self, max_length: int) -> ActivationBytes:
        return ActivationBytes(layer=16 * self.hidden_size, last_layer=16 * self.hidden_size, gradients=0)


class Mixer(Encoder):
    config: MixerConfig
    supported_attention = ("bidirectional",)

    def __init__(self, config: MixerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([nn.Linear(2 * config.hidden_size, config.hidden_size)])
        init_weights(self, config.initializer_range, generator)

    @property
    def has_attention(self) -> bool:
        return False

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): token embeddings alone."""
        return self.lookup_embeddings(batch, layout, sparse_grad)[0]

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return the embeddings and the mixed tokens (N, D), and the mean of each sequence (B, D)."""
        padded = Encoded(hidden_states=(hidden_states,), pooled=None, layout=layout).to_padded()  # (B, T, D)
        means = padded.sum(1) / layout.lengths[:, None]  # (B, D)
        sequences = torch.repeat_interleave(torch.arange(len(means)), self._num_computed(layout))
        mixed = torch.tanh(self.layers[0](torch.cat([hidden_states, means[sequences]], 1)))
        pooled = (
            Encoded(hidden_states=(mixed,), pooled=None, layout=layout).to_padded().sum(1) / layout.lengths[:, None]
        )
        if positions is not None:
            mixed = mixed[layout.token_indices(positions)]
        return Encoded(hidden_states=(hidden_states, mixed), pooled=pooled, layout=layout, positions=positions)

    def _num_computed(self, layout: BatchLayout) -> torch.Tensor:
        """Return (B,): how many tokens of each sequence are computed; with padding if the batch keeps its shape."""
        num_sequences, length = layout.shape
        return torch.full((num_sequences,), length) if layout.index is None else layout.lengths


FAMILY = Family(
    config_class=MixerConfig,
    build=Mixer,
    tensor_names=lambda config: {
        name: (f"mixer.{name}",) for name in ("token_embeddings.weight", "layers.0.weight", "layers.0.bias")
    },
    class_prefix="Mixer",
    prefix="mixer.",
    heads={kind: bert.HEADS[kind] for kind in ("mlm", "nsp", "sequence", "tokens")},
    learning_rate=1e-2,
)
