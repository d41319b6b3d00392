"""The Transformer: decoder logits equal to transformers' Marian, decoding with a cache, attention, configs."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from random_weights import randomize_parameters

from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.families import architecture_of, family_of
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.transformer import (
    DecoderState,
    Transformer,
    TransformerConfig,
    sinusoidal_positions,
)
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import load_into, to_hf_names
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
CONFIG = TransformerConfig.from_preset("tiny", 70).resized(
    hidden_size=24, num_attention_heads=3, intermediate_size=40, max_length=40, encoder_layers=3, decoder_layers=2
)
SOURCES, TARGETS = (11, 4, 7), (9, 9, 3)


def make_batch(lengths: tuple[int, ...], seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(5, CONFIG.vocab_size, (len(lengths), max(lengths)), generator=generator)
    for sequence, length in enumerate(lengths):
        input_ids[sequence, length:] = 0
    return Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor(lengths))


def make_batch_with_source() -> Batch:
    return replace(make_batch(TARGETS, 1), source=make_batch(SOURCES, 2))


def make_peer(config: TransformerConfig) -> Any:
    """transformers' model with this config, random weights and an output bias."""
    config_dict = family_of("marian").config_to_dict(config, [architecture_of(config, "translation")])
    special_ids = {"pad_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 3, "forced_eos_token_id": 3}
    peer_config = transformers.AutoConfig.for_model(**config_dict, **special_ids, attn_implementation="eager")
    peer = randomize_parameters(transformers.MarianMTModel(peer_config)).eval()
    peer.final_logits_bias.copy_(torch.linspace(-1, 1, config.vocab_size)[None])
    return peer


@pytest.fixture
def peer() -> Any:
    return make_peer(CONFIG)


@pytest.fixture
def ours(peer: Any) -> Transformer:
    """Our model with the peer's weights."""
    model = Transformer(CONFIG).eval()
    report = load_into(model, peer.state_dict(), family_of("marian").tensor_names(CONFIG))
    assert report.missing_keys == ()
    return model


def is_token(batch: Batch) -> torch.Tensor:
    return torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]


def compute_logits(ours: Transformer, batch: Batch) -> torch.Tensor:
    return ours(batch).to_padded() @ ours.token_embeddings.weight.t()


@torch.no_grad()
def test_decoder_logits_equal_those_of_marian(ours: Transformer, peer: Any):
    batch = make_batch_with_source()
    assert batch.source is not None
    expected = peer(batch.source.input_ids, is_token(batch.source).long(), batch.input_ids).logits
    logits = compute_logits(ours, batch) + peer.final_logits_bias
    assert float((logits - expected)[is_token(batch)].abs().max()) < TOLERANCE


@torch.no_grad()
def test_decoder_logits_equal_those_of_marian_without_scaled_embeddings():
    config = replace(CONFIG, scale_embedding=False, activation_function="silu")
    peer, batch = make_peer(config), make_batch_with_source()
    ours = Transformer(config).eval()
    load_into(ours, peer.state_dict(), family_of("marian").tensor_names(config))
    assert batch.source is not None
    expected = peer(batch.source.input_ids, is_token(batch.source).long(), batch.input_ids).logits
    logits = compute_logits(ours, batch) + peer.final_logits_bias
    assert float((logits - expected)[is_token(batch)].abs().max()) < TOLERANCE


def test_decoder_weights_are_written_under_transformers_names(ours: Transformer, peer: Any):
    written = to_hf_names(ours.state_dict(), family_of("marian").tensor_names(CONFIG))
    theirs = peer.state_dict()
    assert all(torch.equal(values, theirs[name]) for name, values in written.items())
    others = {name for name in theirs if name not in written}
    copies = family_of("marian").copies
    assert others - set(copies) == {
        "final_logits_bias", "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"
    }  # fmt: skip


@torch.inference_mode()
def test_decoding_token_by_token_with_a_cache_equals_decoding_at_once(ours: Transformer):
    batch = make_batch_with_source()
    state, hidden_states = DecoderState(), []
    for position in range(max(TARGETS)):
        input_ids = batch.input_ids[:, position : position + 1]
        step = Batch(
            input_ids=input_ids,
            token_type_ids=torch.zeros_like(input_ids),
            lengths=torch.ones(3).long(),
            source=None if position else batch.source,
        )
        encoded = ours(step, state)
        assert isinstance(encoded.state, DecoderState)
        state = encoded.state
        hidden_states.append(encoded.last_hidden_state)
    whole = ours(batch).to_padded()
    assert float((torch.stack(hidden_states, 1) - whole)[is_token(batch)].abs().max()) < TOLERANCE
    assert state.cache.length == max(TARGETS)


@torch.inference_mode()
def test_several_sequences_may_share_a_source(ours: Transformer):
    source = make_batch((6, 4), 3)
    input_ids = torch.tensor([[7], [8], [9], [10]])  # two consecutive sequences of each source
    together = ours(
        Batch(
            input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.ones(4).long(), source=source
        ),
        DecoderState(),
    ).last_hidden_state
    for sequence in range(4):
        own_source = Batch(
            input_ids=source.input_ids[sequence // 2][None],
            token_type_ids=torch.zeros(1, 6).long(),
            lengths=source.lengths[sequence // 2][None],
        )
        alone = ours(
            Batch(
                input_ids=input_ids[sequence][None],
                token_type_ids=torch.zeros(1, 1).long(),
                lengths=torch.ones(1).long(),
                source=own_source,
            ),
            DecoderState(),
        ).last_hidden_state
        assert float((together[sequence] - alone[0]).abs().max()) < TOLERANCE


def test_a_target_attends_to_earlier_tokens_and_to_its_source_without_padding():
    ours = randomize_parameters(Transformer(CONFIG)).double().eval()
    input_ids, source = torch.arange(5, 14)[None], torch.arange(20, 32)[None]  # every token occurs once
    source_batch = Batch(input_ids=source, token_type_ids=torch.zeros_like(source), lengths=torch.tensor([10]))
    batch = Batch(
        input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor([9]), source=source_batch
    )
    ours(batch).to_padded()[0, 3].sum().backward()
    gradient = ours.token_embeddings.weight.grad
    assert gradient is not None
    assert bool((gradient[5:9].abs().sum(1) > 0).all())
    assert float(gradient[9:14].abs().max()) == 0
    assert bool((gradient[20:30].abs().sum(1) > 0).all())
    assert float(gradient[30:32].abs().max()) == 0


@torch.no_grad()
def test_the_last_decoder_layer_at_some_positions_equals_that_at_all(ours: Transformer):
    batch, positions = make_batch_with_source(), torch.tensor([20, 3, 0])
    assert torch.equal(ours(batch).gather(positions), ours(batch, positions=positions).gather(positions))


def test_dropout_follows_the_seeds_and_differs_between_encoder_and_decoder():
    ours = Transformer(CONFIG, torch.Generator().manual_seed(0)).train()
    batch = make_batch((9, 9, 9), 4)
    batch = replace(batch, source=batch)
    seeds = DropoutSeeds(torch.tensor(5, dtype=torch.int32))
    once, again = ours(batch, seeds=seeds), ours(batch, seeds=seeds)
    assert torch.equal(once.last_hidden_state, again.last_hidden_state)
    encoder_output = ours(replace(batch, source=None), seeds=seeds)
    assert not torch.equal(once.hidden_states[0] == 0, encoder_output.hidden_states[0] == 0)
    ours.set_dropout(0.0)
    assert torch.allclose(ours(batch, seeds=seeds).last_hidden_state, ours.eval()(batch).last_hidden_state, atol=1e-5)


def test_activation_checkpointing_gives_the_same_gradients():
    batch = make_batch_with_source()
    gradients = []
    for is_checkpointed in (False, True):
        ours = Transformer(CONFIG, torch.Generator().manual_seed(0)).train()
        ours.activation_checkpointing = is_checkpointed
        ours(batch, seeds=DropoutSeeds(torch.tensor(5, dtype=torch.int32))).last_hidden_state.square().sum().backward()
        gradients.append([one.grad for one in ours.parameters() if one.grad is not None])
    assert len(gradients[0]) == len(list(Transformer(CONFIG).parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_positions_are_the_sinusoids_of_the_paper():
    table = sinusoidal_positions(3, 4)
    expected = [[0, 0, 1, 1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]]
    assert torch.allclose(table[:2], torch.tensor(expected))


def test_a_decoder_that_differs_from_its_encoder_is_refused():
    config_dict = family_of("marian").config_to_dict(CONFIG, [])
    with pytest.raises(SettingsError, match="decoder_ffn_dim is 8"):
        family_of("marian").config_from_dict({**config_dict, "decoder_ffn_dim": 8})
    with pytest.raises(SettingsError, match="share_encoder_decoder_embeddings"):
        family_of("marian").config_from_dict({**config_dict, "share_encoder_decoder_embeddings": False})


def test_a_state_can_be_reduced_to_some_sources():
    ours = randomize_parameters(Transformer(CONFIG)).eval()
    source = make_batch((6, 4), 3)
    input_ids = torch.tensor([[7], [8]])
    with torch.no_grad():
        state = ours(
            Batch(
                input_ids=input_ids,
                token_type_ids=torch.zeros_like(input_ids),
                lengths=torch.ones(2).long(),
                source=source,
            ),
            DecoderState(),
        ).state
        assert isinstance(state, DecoderState)
        assert state.source_cache is not None
        indices = torch.tensor([1])
        cache = EncoderState(1, tuple((keys[indices], values[indices]) for keys, values in state.cache.layers))
        step = Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.ones(2).long())
        whole = ours(step, state).last_hidden_state
        alone = ours(
            Batch(input_ids=input_ids[1:], token_type_ids=input_ids[1:] * 0, lengths=torch.ones(1).long()),
            DecoderState(cache, state.source_cache.select_sequences(indices)),
        ).last_hidden_state
    assert float((whole[1] - alone[0]).abs().max()) < TOLERANCE
