"""ERNIE: BERT's encoder with its own config.json, and embeddings of the task type where a checkpoint has them.

ERNIE 2.0 and 3.0 were pretrained on several tasks and add an embedding of the task to each token. In use, that of the
first task is added to all tokens, as transformers does by default.

N tokens, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.config import OPTIONAL
from bertworks.encoders.encoded import BatchLayout
from bertworks.encoders.encoder import init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.tensor_names import replace_prefix
from bertworks.sampling.batch import Batch


@dataclass(frozen=True, kw_only=True)
class ErnieConfig(BertConfig):
    """The config.json of an ERNIE; `use_task_id` states whether it has embeddings of the task type."""

    model_type: ClassVar[str] = "ernie"

    task_type_vocab_size: int = field(default=3, metadata=OPTIONAL)
    use_task_id: bool = False


class Ernie(Bert):
    """The encoder of ERNIE, with its pooler."""

    config: ErnieConfig

    def __init__(self, config: ErnieConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, generator)
        if config.use_task_id:
            self.task_type_embeddings = nn.Embedding(config.task_type_vocab_size, config.hidden_size)
            init_weights(self.task_type_embeddings, config.initializer_range, generator)

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): norm(token + position + token type + task type embedding)."""
        embeddings, positions, token_types = self.lookup_embeddings(batch, layout, sparse_grad)
        embeddings = embeddings + self.position_embeddings(positions) + self.token_type_embeddings(token_types)
        return self.norm(embeddings + self.task_type_embeddings.weight[0] if self.config.use_task_id else embeddings)

    def embedding_components(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the embeddings that are summed for one sequence (T,), each (T, D), by name."""
        components = super().embedding_components(input_ids, token_type_ids)
        if self.config.use_task_id:
            components["task_type"] = self.task_type_embeddings.weight[0].expand(len(input_ids), -1)
        return components

    def graph_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of its ONNX graph; the embedding of the task type is added to those of positions."""
        tensors = super().graph_tensors()
        if self.config.use_task_id:
            task_type = tensors.pop("task_type_embeddings.weight")[0]
            tensors["position_embeddings.weight"] = tensors["position_embeddings.weight"] + task_type
        return tensors


def tensor_names(config: ErnieConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    names = replace_prefix(bert.tensor_names(config), "bert.", "ernie.")
    if config.use_task_id:
        names["task_type_embeddings.weight"] = ("ernie.embeddings.task_type_embeddings.weight",)
    return names


FAMILY = Family(
    config_class=ErnieConfig,
    build=Ernie,
    tensor_names=tensor_names,
    class_prefix="Ernie",
    prefix="ernie.",
    optional_prefixes=("ernie.pooler.",),
    copies={
        "cls.predictions.decoder.weight": "ernie.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    heads=bert.HEADS,
)
