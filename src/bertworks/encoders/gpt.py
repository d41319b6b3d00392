"""GPT (the first): a Batch in, an Encoded out. Causal attention; the pooled output is that of the last token.

B sequences, T positions, N tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn

from bertworks.encoders.config import TRANSFORMER_PRESETS, EncoderConfig, check_activation, check_num_heads
from bertworks.encoders.encoded import BatchLayout
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import Layer, LayerConfig
from bertworks.encoders.tensor_names import expand_weight_and_bias, mark_transposed
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.tokenizer import Tokenizer

# The activation functions by transformers' names for this family, whose "gelu" is the approximation by tanh.
_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}


@dataclass(frozen=True, kw_only=True)
class GptConfig(EncoderConfig):
    """The config.json of a GPT. The defaults are the paper's; the intermediate size is always 4 * n_embd.

    pad_token_id   is not pooled where it ends a sequence, be it a token of texts, too, such as <unk>
    """

    model_type: ClassVar[str] = "openai-gpt"
    target_ratio: ClassVar[float] = 1.0
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = TRANSFORMER_PRESETS
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "hidden_size": ("n_embd",),
        "num_hidden_layers": ("n_layer",),
        "num_attention_heads": ("n_head",),
        "max_length": ("n_positions",),
        "hidden_act": ("afn",),
        "dropout_prob": ("embd_pdrop", "resid_pdrop", "attn_pdrop"),
    }

    vocab_size: int = 40_478
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_positions: int = 512
    afn: str = "gelu"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    pad_token_id: int | None = field(default=None, metadata={"optional": True, "minimum": -1})  # -1: no token, either

    def __post_init__(self) -> None:
        check_num_heads(self.n_embd, self.n_head)
        check_activation(self.afn, _ACTIVATIONS)

    @property
    def hidden_size(self) -> int:
        return self.n_embd

    @property
    def num_hidden_layers(self) -> int:
        return self.n_layer

    @property
    def max_length(self) -> int:
        return self.n_positions

    @property
    def hidden_dropout_prob(self) -> float:
        return self.resid_pdrop

    @property
    def layer_config(self) -> LayerConfig:
        return LayerConfig(
            hidden_size=self.n_embd,
            num_attention_heads=self.n_head,
            intermediate_size=4 * self.n_embd,
            hidden_dropout_prob=self.resid_pdrop,
            attention_probs_dropout_prob=self.attn_pdrop,
            hidden_act=_ACTIVATIONS[self.afn],
            layer_norm_eps=self.layer_norm_epsilon,
        )

    def resized(self, **changes: Any) -> Self:
        intermediate_size = changes.pop("intermediate_size", None)
        config = super().resized(**changes)
        if intermediate_size not in (None, 4 * config.n_embd):
            raise SettingsError(
                f"intermediate_size is {intermediate_size}, but a GPT's is 4 * hidden_size; leave it out"
            )
        return config


class Gpt(Encoder):
    """The decoder of the first GPT: no token types, no norm after the embeddings, no pooler."""

    config: GptConfig
    has_graph = True
    supported_attention = ("causal",)

    def __init__(self, config: GptConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.n_embd)
        self.position_embeddings = nn.Embedding(config.n_positions, config.n_embd)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.n_layer))
        init_weights(self, config.initializer_range, generator)

    @property
    def embedding_dropout_prob(self) -> float:
        return self.config.embd_pdrop

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): token + position embedding."""
        embeddings, positions, _ = self.lookup_embeddings(batch, layout, sparse_grad)
        return embeddings + self.position_embeddings(positions)

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Take over the padding token, which a folder of transformers need not have stated."""
        self.config = replace(self.config, pad_token_id=tokenizer.specials.pad)

    @property
    def unpooled_token_id(self) -> int | None:
        return self.config.pad_token_id

    def create_layout(self, batch: Batch) -> BatchLayout:
        """Return the layout of a batch; as in transformers, the last token that is not padding by its id is pooled."""
        layout, token_id = super().create_layout(batch), self.unpooled_token_id
        if token_id is None:
            return layout
        positions = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
        is_pooled = (positions < batch.lengths[:, None]) & (batch.input_ids != token_id)  # (B, T)
        return replace(layout, pooled_lengths=(positions * is_pooled).amax(1) + 1)

    def pooled_positions(self, layout: BatchLayout) -> torch.Tensor:
        """Return (B,): the index of the last token that is pooled."""
        lengths = layout.lengths if layout.pooled_lengths is None else layout.pooled_lengths
        return layout.starts + lengths - 1

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the vectors unchanged: there is no pooler."""
        return vectors


_LAYER_NAMES = {
    "attention.query_key_value": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "attention_norm": "ln_1",
    "intermediate": "mlp.c_fc",
    "output": "mlp.c_proj",
    "norm": "ln_2",
}


def tensor_names(config: GptConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers', whose matrices are transposed."""
    names: dict[str, tuple[str, ...]] = {
        "token_embeddings.weight": ("transformer.tokens_embed.weight",),
        "position_embeddings.weight": ("transformer.positions_embed.weight",),
    }
    for index in range(config.n_layer):
        modules = {
            f"layers.{index}.{ours}": (f"transformer.h.{index}.{theirs}",) for ours, theirs in _LAYER_NAMES.items()
        }
        for ours, (theirs,) in expand_weight_and_bias(modules).items():
            is_matrix = ours.endswith("weight") and not ours.endswith("norm.weight")
            names[ours] = (mark_transposed(theirs) if is_matrix else theirs,)
    return names


FAMILY = Family(
    config_class=GptConfig,
    build=Gpt,
    tensor_names=tensor_names,
    class_prefix="OpenAIGPT",
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.tokens_embed.weight"},
    # transformers' heads have no bias, so ours have none.
    heads={"causal": {}, "sequence": {"score.weight": ("score.weight",)}},
    has_token_types=False,
    can_lack_special_tokens=True,
)
