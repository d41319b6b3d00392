"""ELECTRA: a Batch in, an Encoded out. BERT's layers over embeddings of another size; and its generator.

In pretraining a small generator replaces masked tokens, and the encoder, the discriminator, finds the replaced ones.
Both have the same embeddings.

N tokens, E embedding size, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.bert import BertConfig
from bertworks.encoders.config import OPTIONAL, SUPPORTED_VALUES, TRANSFORMER_PRESETS
from bertworks.encoders.encoded import BatchLayout
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import Layer
from bertworks.encoders.memory import ActivationBytes, transformer_activation_bytes
from bertworks.encoders.tensor_names import expand_weight_and_bias, replace_prefix
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(BertConfig):
    """The config.json of an ELECTRA. Small, base and large are the released sizes; the others are ours.

    generator_size   sizes of the generator (hidden, intermediate, heads) over those of the discriminator; a key of ours
    """

    model_type: ClassVar[str] = "electra"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {**TRANSFORMER_PRESETS["tiny"], "embedding_size": 64},
        "mini": {**TRANSFORMER_PRESETS["mini"], "embedding_size": 128},
        "small": {
            "num_hidden_layers": 12,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "embedding_size": 128,
        },
        "base": {**TRANSFORMER_PRESETS["base"], "embedding_size": 768, "generator_size": 1 / 3},
        "large": {**TRANSFORMER_PRESETS["large"], "embedding_size": 1_024},
    }
    supported_values: ClassVar[Mapping[str, Any]] = {
        **SUPPORTED_VALUES,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    }

    embedding_size: int = field(default=128, metadata=OPTIONAL)
    generator_size: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.generator_size < 1:
            raise SettingsError(f"generator_size is {self.generator_size}; it must be between 0 and 1, such as 0.25")

    @property
    def token_embedding_size(self) -> int:
        return self.embedding_size

    @property
    def mlm_hidden_act(self) -> str:
        return "gelu"  # in transformers, whatever hidden_act is

    def activation_bytes(self, max_length: int) -> ActivationBytes:
        """Estimate the memory of replaced token detection: every token is a target, and the generator has layers."""
        own = transformer_activation_bytes(self.layer_config, max_length, 1.0)
        generator = transformer_activation_bytes(self.generator_config.layer_config, max_length, self.target_ratio)
        return ActivationBytes(
            layer=own.layer + generator.layer,
            last_layer=own.layer + generator.last_layer,
            gradients=own.gradients,
        )

    @property
    def generator_config(self) -> ElectraConfig:
        """The config of the generator, with as many layers and the same embeddings."""
        num_heads = max(1, round(self.generator_size * self.num_attention_heads))
        return self.resized(
            num_attention_heads=num_heads,
            hidden_size=num_heads * max(1, round(self.generator_size * self.hidden_size / num_heads)),
            intermediate_size=max(1, round(self.generator_size * self.intermediate_size)),
        )


class Electra(Encoder):
    """The encoder of ELECTRA. Its pooler is part of the heads for sequences in transformers."""

    config: ElectraConfig
    has_graph = True
    pooler_activation = "gelu"

    def __init__(self, config: ElectraConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        if config.embedding_size != config.hidden_size:
            self.embedding_projection = nn.Linear(config.embedding_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        init_weights(self, config.initializer_range, generator)

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): the embeddings, projected where their size is another."""
        return project_embeddings(self, self.embed_unprojected(batch, layout, sparse_grad))

    def embed_unprojected(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, E): norm(token + position + token type embedding), which the generator projects, too."""
        embeddings, positions, token_types = self.lookup_embeddings(batch, layout, sparse_grad)
        return self.norm(embeddings + self.position_embeddings(positions) + self.token_type_embeddings(token_types))


class ElectraGenerator(Encoder):
    """The layers of a generator. The embeddings are the discriminator's; there is no pooler."""

    config: ElectraConfig

    def __init__(self, config: ElectraConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        if config.embedding_size != config.hidden_size:
            self.embedding_projection = nn.Linear(config.embedding_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.num_hidden_layers))
        init_weights(self, config.initializer_range, generator)

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the vectors unchanged: there is no pooler."""
        return vectors


def project_embeddings(encoder: Electra | ElectraGenerator, embeddings: torch.Tensor) -> torch.Tensor:
    """Return (N, D) of embeddings (N, E): the input of the first layer."""
    if encoder.config.embedding_size == encoder.config.hidden_size:
        return embeddings
    return encoder.embedding_projection(embeddings).to(embeddings.dtype)


# The beginning of the names of the generator's tensors in the folder of a discriminator.
GENERATOR_PREFIX = "generator."
MLM_NAMES: dict[str, tuple[str, ...]] = {
    **expand_weight_and_bias({"dense": ("generator_predictions.dense",), "norm": ("generator_predictions.LayerNorm",)}),
    "bias": ("generator_lm_head.bias",),
}


def tensor_names(config: ElectraConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    names = replace_prefix(bert.tensor_names(config), "bert.", "electra.")
    names |= expand_weight_and_bias({"pooler": ("electra.pooler",)})
    if config.embedding_size != config.hidden_size:
        names |= expand_weight_and_bias({"embedding_projection": ("electra.embeddings_project",)})
    return names


def generator_tensor_names(config: ElectraConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor of a generator with this config -> its name in the folder of a discriminator."""
    own = ("embedding_projection.", "layers.")
    names = {ours: theirs for ours, theirs in tensor_names(config).items() if ours.startswith(own)}
    return replace_prefix(names, "", GENERATOR_PREFIX)


FAMILY = Family(
    config_class=ElectraConfig,
    build=Electra,
    tensor_names=tensor_names,
    class_prefix="Electra",
    prefix="electra.",
    optional_prefixes=("electra.pooler.",),
    copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    heads={
        "rtd": expand_weight_and_bias(
            {"dense": ("discriminator_predictions.dense",), "score": ("discriminator_predictions.dense_prediction",)}
        ),
        "mlm": MLM_NAMES,
        "generator": replace_prefix(MLM_NAMES, "", GENERATOR_PREFIX),
        "sequence": expand_weight_and_bias({"score": ("classifier.out_proj",)}),
        "tokens": bert.HEADS["tokens"],
        "choices": bert.HEADS["choices"],
        "spans": bert.HEADS["spans"],
    },
    prefix_overrides={
        "sequence": {"electra.pooler.": "classifier.dense."},
        "choices": {"electra.pooler.": "sequence_summary.summary."},
    },
)
