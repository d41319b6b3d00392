"""What callers need to know of a graph's encoder: a config in, a GraphConfig out; an exported folder records it.

With it, an exported model runs without the code of its family, and so without PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertworks.encoders.config import EncoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphConfig:
    """The sizes of a graph's encoder; `head_kind` is the head in the graph: sequence, tokens, spans, mlm or none ("").

    The names are those of `EncoderConfig`.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_length: int
    head_kind: str = ""
    adds_special_tokens: bool = True  # else the head was trained, by transformers' GPT, without them

    @property
    def depth(self) -> int:
        """How many layers run one after another."""
        return self.num_hidden_layers

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        """The sizes of the embeddings and of the output of each layer."""
        return (self.hidden_size,) * (self.num_hidden_layers + 1)

    @classmethod
    def from_encoder_config(cls, config: EncoderConfig, head_kind: str, adds_special_tokens: bool) -> GraphConfig:
        """Return the sizes of an encoder."""
        return cls(
            model_type=config.model_type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.depth,
            max_length=config.max_length,
            head_kind=head_kind,
            adds_special_tokens=adds_special_tokens,
        )
