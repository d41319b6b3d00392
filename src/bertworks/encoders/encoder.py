"""The base of all encoders: a Batch in, an Encoded out.

A family adds its embeddings and layers, and says how tokens are embedded and sequences pooled.
B sequences, T positions, N tokens, D hidden size, H heads, E embedding size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import (
    BatchLayout,
    Encoded,
    EncoderState,
    create_layout,
    create_layout_with_cache,
    round_shapes,
    select_output_positions,
)
from bertworks.encoders.layers import ACTIVATIONS, Attention, DropoutSeeds, Layer
from bertworks.encoders.linear import compute_dtype
from bertworks.encoders.precision import DTYPES
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch, collate_sequences
from bertworks.sampling.padding import TokenSequence
from bertworks.vocabulary.tokenizer import Tokenizer


class Encoder(nn.Module):
    """Layers over embedded tokens. Dropout needs training mode and the seeds of a step.

    attention                  the attention of batches that state none: one of `supported_attention`
    compute_dtype              the dtype of matmuls (see `set_precision`); None: autocast's, or that of the parameters
    has_half_precision         whether it computes in bf16 and fp16; recurrent layers are fp32 in any precision
    reads_characters           whether it reads the spelling of unknown words, rather than one embedding for all
    has_graph                  whether `engines.onnx_graph` covers its computation
    pooler_activation          the activation function after the pooler
    pools_mean                 whether it pools the mean of all tokens, rather than one of them
    activation_checkpointing   keep only the inputs of layers and recompute the rest in the backward pass: less memory,
                               a third more time
    """

    supported_attention: tuple[str, ...] = ("bidirectional", "causal", "mask")
    compute_dtype: torch.dtype | None = None
    has_half_precision: bool = True
    reads_characters: bool = False
    has_graph: bool = False
    pooler_activation: str = "tanh"
    pools_mean: bool = False
    token_embeddings: nn.Embedding
    layers: nn.ModuleList
    pooler: nn.Linear

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = self.supported_attention[0]
        self.activation_checkpointing = False

    def __call__(self, *args: Any, **kwargs: Any) -> Encoded:
        """Call `forward` in the precision of this encoder; hidden states are fp32 in any."""
        if self.compute_dtype is None and self.has_half_precision:
            return super().__call__(*args, **kwargs)
        with torch.autocast(self.device.type, self.compute_dtype, enabled=self.has_half_precision):
            return super().__call__(*args, **kwargs)

    def set_precision(self, precision: str, cast_weights: bool = False) -> None:
        """Compute in fp32, bf16 or fp16 from now on.

        The weights of layers are cast for good if `cast_weights`, which halves the memory that a batch reads: for
        inference. Otherwise they stay fp32 and are cast once for each of their versions.
        """
        dtype = DTYPES[precision] if self.has_half_precision else torch.float32
        self.compute_dtype = None if dtype == torch.float32 else dtype
        if not cast_weights or self.compute_dtype is None:
            return
        for layer in self.modules():
            if isinstance(layer, Layer | Attention):
                for linear in layer.children():
                    if isinstance(linear, nn.Linear):
                        linear.weight = nn.Parameter(linear.weight.detach().to(dtype), requires_grad=False)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
        sparse_grad: bool = False,
    ) -> Encoded:
        """Return the hidden states of all layers and the pooled output of each sequence.

        state        the tokens of the batch continue those that this `EncoderState` was computed from, with causal
                     attention, and a new state is returned
        seeds        seeds of dropout, used in training mode only
        positions    compute the last layer only for the pooled output and at these positions (sequence * T + position)
        sparse_grad  give the token embeddings a sparse gradient, for an output layer that is tied to them and gives
                     them a dense one
        """
        if state is not None:
            assert isinstance(state, EncoderState), "the state of another encoder"
            layout = self.create_layout_with_cache(batch, state)
            return self.forward_layers_with_cache(self.embed(batch, layout, sparse_grad), layout, state)
        layout = self.create_layout(batch)
        return self.forward_layers(self.embed(batch, layout, sparse_grad), layout, seeds, positions)

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Run the layers on embedded tokens (N, D)."""
        seeds = seeds if self.training else None
        hidden_states = dropout(hidden_states, seeds.seed_for(0) if seeds else None, self.embedding_dropout_prob)
        dtype = hidden_states.dtype
        if torch.is_inference_mode_enabled() and hidden_states.device.type == "cpu":
            hidden_states = hidden_states.to(compute_dtype(hidden_states))  # a residual is then added by the matmul
        all_states = [hidden_states]
        pooled_positions = self.pooled_positions(layout)
        outputs = None if positions is None else select_output_positions(layout, pooled_positions, positions)
        layers = self.layer_sequence
        for index, layer in enumerate(layers):
            layer_seeds = tuple(seeds.seed_for(3 * index + offset) for offset in (1, 2, 3)) if seeds else None
            if outputs is not None and index == len(layers) - 1:
                hidden_states = self._run_layer(layer.forward_at, hidden_states, layout, layer_seeds, outputs)
            else:
                hidden_states = self._run_layer(layer, hidden_states, layout, layer_seeds)
            all_states.append(hidden_states)
        all_states = [states.to(dtype) for states in all_states]
        if outputs is None:
            pooled = all_states[-1][pooled_positions]
        else:
            num_sequences = len(pooled_positions)
            pooled, all_states[-1] = all_states[-1][:num_sequences], all_states[-1][num_sequences:]
        return Encoded(hidden_states=tuple(all_states), pooled=self.pool(pooled), layout=layout, positions=positions)

    def create_layout_with_cache(self, batch: Batch, state: EncoderState) -> BatchLayout:
        """Return the layout of a batch that continues the sequences of `state`."""
        length, max_length = batch.input_ids.shape[1], self.config.max_length
        if (self.attention if batch.attention is None else batch.attention) != "causal":
            raise SettingsError("only a model with causal attention has a key/value cache; pass whole sequences")
        if int(batch.lengths.min()) < length or state.length + length > max_length:
            raise InputError(
                f"sequences that are continued must be of equal length and end within the {max_length} positions of "
                f"the model"
            )
        return create_layout_with_cache(batch, state.length)

    def forward_layers_with_cache(
        self, hidden_states: torch.Tensor, layout: BatchLayout, state: EncoderState
    ) -> Encoded:
        """Run the layers on embedded tokens (N, D) that also attend to the cached keys and values."""
        all_states, caches = [hidden_states], []
        for index, layer in enumerate(self.layer_sequence):
            cache = state.layers[index] if state.layers else None
            hidden_states, new_cache = layer.forward_with_cache(hidden_states, layout, cache)
            all_states.append(hidden_states)
            caches.append(new_cache)
        new_state = EncoderState(state.length + layout.shape[1], tuple(caches))
        pooled = self.pool(hidden_states[self.pooled_positions(layout)])
        return Encoded(hidden_states=tuple(all_states), pooled=pooled, layout=layout, state=new_state)

    @property
    def layer_sequence(self) -> Sequence[Layer]:
        """The layers in the order in which they are run."""
        return list(self.layers)  # type: ignore[arg-type]

    def layer_depths(self) -> dict[str, int]:
        """Return the depth of each parameter: 0 for embeddings, i for the i-th layer, `config.depth` + 1 for the
        pooler. The last layer has depth `config.depth` however often it is run (ALBERT has only one)."""
        num_layers = self.config.depth
        depths = {name: 0 for name, _ in self.named_parameters()}
        for index, layer in enumerate(self.layers):
            depth = num_layers if index == len(self.layers) - 1 else index + 1
            depths |= {f"layers.{index}.{name}": depth for name, _ in layer.named_parameters()}
        if hasattr(self, "pooler"):
            depths |= {f"pooler.{name}": num_layers + 1 for name, _ in self.pooler.named_parameters()}
        return depths

    @property
    def has_attention(self) -> bool:
        """Whether its layers have attention weights."""
        return all(isinstance(layer, Layer) for layer in self.layer_sequence)

    def attention_weights(self, batch: Batch, layer_indices: Iterable[int]) -> Iterator[torch.Tensor]:
        """Yield the attention weights (B, H, T, T) of these layers, for sequences of equal length."""
        if not self.has_attention:
            raise SettingsError(
                f"a model of the family '{self.config.model_type}' has no attention weights; choose a Transformer"
            )
        layout = self.create_layout(batch)
        hidden_states = self.forward_layers(self.embed(batch, layout), layout).hidden_states
        for index in layer_indices:
            yield self.layer_sequence[index].attention_weights(hidden_states[index], layout)

    @property
    def max_cached_length(self) -> float:
        """The number of tokens of the longest sequence that can be read in parts, with a state."""
        return self.config.max_length

    @property
    def unpooled_token_id(self) -> int | None:
        """The token that is not pooled at the end of a sequence, where the last token is pooled; None: any token is."""
        return None

    @property
    def embedding_dropout_prob(self) -> float:
        return self.config.hidden_dropout_prob

    @property
    def device(self) -> torch.device:
        return self.token_embeddings.weight.device

    @property
    def num_parallel_batches(self) -> int:
        """The number of batches to compute at the same time, each in a thread: one a core."""
        return torch.get_num_threads() if self.device.type == "cpu" else 1

    @torch.inference_mode()
    def encode_sequences(self, sequences: Sequence[TokenSequence], pad: int) -> Encoded:
        """Return the output for token sequences, without gradients; `pad` is the padding token."""
        return self(collate_sequences(sequences, pad).to(self.device))

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Take over what depends on the vocabulary, before training: ELMo's spelling of words, GPT's padding token."""

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): the input of the first layer."""
        raise NotImplementedError

    def pooled_positions(self, layout: BatchLayout) -> torch.Tensor:
        """Return (B,): the index of the token that is pooled: the first, or the last with causal attention."""
        return layout.starts + layout.lengths - 1 if self.attention == "causal" else layout.starts

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the pooled output (B, D) from the last layer at the pooled positions (B, D)."""
        return ACTIVATIONS[self.pooler_activation](self.pooler(vectors).to(vectors.dtype))

    def transform_for_head(self, encoded: Encoded) -> Encoded:
        """Return what heads for tokens read: the output itself, unless all heads of the family share a transform."""
        return encoded

    def embedding_components(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the embeddings that are summed for one sequence (T,), each (T, E), by name."""
        positions = torch.arange(len(input_ids), device=input_ids.device) + self.config.first_position
        indices = {"token": input_ids, "position": positions, "token_type": self._known_token_types(token_type_ids)}
        return {
            name: getattr(self, f"{name}_embeddings")(values)
            for name, values in indices.items()
            if hasattr(self, f"{name}_embeddings")
        }

    def lookup_embeddings(
        self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the token embeddings (N, E), and the positions (N,) and token types (N,) of the tokens."""
        num_sequences, length = batch.input_ids.shape
        input_ids, token_type_ids = batch.input_ids.flatten(), batch.token_type_ids.flatten()
        if layout.index is None:
            positions = torch.arange(length, device=input_ids.device).repeat(num_sequences)
        else:
            input_ids, token_type_ids = input_ids[layout.index], token_type_ids[layout.index]
            positions = layout.index % length
        embeddings = F.embedding(input_ids, self.token_embeddings.weight, sparse=sparse_grad)
        positions = positions + layout.num_cached + self.config.first_position
        return embeddings, positions, self._known_token_types(token_type_ids)

    def _known_token_types(self, token_type_ids: torch.Tensor) -> torch.Tensor:
        """Return the token types; a model with one type does not distinguish those of a vocabulary with two."""
        return torch.zeros_like(token_type_ids) if self.config.type_vocab_size == 1 else token_type_ids

    def graph_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of its ONNX graph by name; the position embeddings begin at the first position."""
        tensors = self.state_dict()
        if "position_embeddings.weight" in tensors:
            first_position = self.config.first_position
            tensors["position_embeddings.weight"] = tensors["position_embeddings.weight"][first_position:]
        return tensors

    def set_dropout(self, dropout_prob: float) -> None:
        """Set the dropout probability of all layers and of the config."""
        self.config = self.config.resized(dropout_prob=dropout_prob)
        for module in self.modules():
            if isinstance(module, Layer | Attention):
                module.dropout_prob = dropout_prob
            if isinstance(module, Layer):
                module.attention.dropout_prob = dropout_prob

    def _run_layer(self, layer: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
        """Call a layer, with activation checkpointing if it is on; dropout masks follow from seeds, so that the
        recomputation repeats them."""
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, *args, use_reentrant=False, preserve_rng_state=False)
        return layer(*args)

    def create_layout(self, batch: Batch) -> BatchLayout:
        """Return the layout of a batch."""
        layout = create_layout(batch, self.resolve_attention(batch))
        is_cpu_inference = torch.is_inference_mode_enabled() and batch.input_ids.device.type == "cpu"
        return round_shapes(layout) if is_cpu_inference and self.has_attention else layout

    def resolve_attention(self, batch: Batch) -> str | torch.Tensor:
        """Return the attention of a batch; refuse a batch that this encoder cannot compute."""
        length, max_length = batch.input_ids.shape[1], self.config.max_length
        if length > max_length:
            raise InputError(
                f"a sequence of {length} tokens is longer than the {max_length} positions of this model; split the "
                f"text into windows, or choose a smaller --max-length"
            )
        if int(batch.lengths.min()) < 1:
            raise InputError(
                f"sequence {int(batch.lengths.argmin())} is empty; every sequence needs at least one token, and that "
                f"of an empty text has [CLS] and [SEP]"
            )
        attention = self.attention if batch.attention is None else batch.attention
        if (attention if isinstance(attention, str) else "mask") not in self.supported_attention:
            raise SettingsError(
                f"the family '{self.config.model_type}' supports attention {' or '.join(self.supported_attention)} only"
            )
        return attention


def init_weights(module: nn.Module, initializer_range: float, generator: torch.Generator | None) -> None:
    """Initialize as the BERT release: weights from a truncated normal distribution, biases 0, norms 1."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            init_truncated_normal(part.weight, initializer_range, generator)
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


def init_truncated_normal(values: torch.Tensor, std: float, generator: torch.Generator | None) -> None:
    """Fill with a normal distribution that is truncated at two standard deviations."""
    nn.init.trunc_normal_(values, 0.0, std, -2 * std, 2 * std, generator=generator)
