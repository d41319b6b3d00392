"""The Transformer: logits of its decoder equal to transformers' Marian, pieces one by one, and what may read what."""

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
    config_from_preset,
    sinusoidal_positions,
)
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import load_into, to_hf_names
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
CLOSE = 1e-5
SIZES = replace(
    config_from_preset("tiny", 70),
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=40,
    num_decoder_layers=2,
)
SOURCES, TARGETS = (11, 4, 7), (9, 9, 3)


def batch_of_lengths(lengths: tuple[int, ...], seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, SIZES.vocab_size, (len(lengths), max(lengths)), generator=generator)
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
    return Batch(ids, torch.zeros_like(ids), torch.tensor(lengths))


def batch_with_source() -> Batch:
    return replace(batch_of_lengths(TARGETS, 1), source=batch_of_lengths(SOURCES, 2))


def peer_of(sizes: TransformerConfig) -> Any:
    """transformers' model of these sizes, with weights of its own, a bias of its scores too."""
    config = family_of("marian").config_to_dict(sizes, [architecture_of(sizes, "translation")])
    numbers = {"pad_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 3, "forced_eos_token_id": 3}
    kind = transformers.AutoConfig.for_model(**config, **numbers, attn_implementation="eager")
    peer = randomize_parameters(transformers.MarianMTModel(kind)).eval()
    peer.final_logits_bias.copy_(torch.linspace(-1, 1, sizes.vocab_size)[None])
    return peer


@pytest.fixture
def peer() -> Any:
    return peer_of(SIZES)


@pytest.fixture
def ours(peer: Any) -> Transformer:
    """Ours, with the peer's weights."""
    found = Transformer(SIZES).eval()
    report = load_into(found, peer.state_dict(), family_of("marian").tensor_names(SIZES))
    assert report.missing_keys == ()
    return found


def real(batch: Batch) -> torch.Tensor:
    return torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]


def logits_of(ours: Transformer, batch: Batch) -> torch.Tensor:
    return ours(batch).to_padded() @ ours.token_embeddings.weight.t()


@torch.no_grad()
def test_logits_of_the_decoder_equal_those_of_marian(ours: Transformer, peer: Any):
    batch = batch_with_source()
    assert batch.source is not None
    expected = peer(batch.source.input_ids, real(batch.source).long(), batch.input_ids).logits
    found = logits_of(ours, batch) + peer.final_logits_bias
    assert float((found - expected)[real(batch)].abs().max()) < CLOSE


@torch.no_grad()
def test_embeddings_that_are_not_scaled_equal_those_of_marian_too():
    sizes = replace(SIZES, scale_embedding=False, hidden_act="silu")
    peer, batch = peer_of(sizes), batch_with_source()
    ours = Transformer(sizes).eval()
    load_into(ours, peer.state_dict(), family_of("marian").tensor_names(sizes))
    assert batch.source is not None
    expected = peer(batch.source.input_ids, real(batch.source).long(), batch.input_ids).logits
    found = logits_of(ours, batch) + peer.final_logits_bias
    assert float((found - expected)[real(batch)].abs().max()) < CLOSE


def test_weights_of_the_decoder_go_back_under_the_names_they_had(ours: Transformer, peer: Any):
    back = to_hf_names(ours.state_dict(), family_of("marian").tensor_names(SIZES))
    theirs = peer.state_dict()
    assert all(torch.equal(values, theirs[name]) for name, values in back.items())
    left = {name for name in theirs if name not in back}
    copies = family_of("marian").copies
    assert left - set(copies) == {
        "final_logits_bias", "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"
    }  # fmt: skip


@torch.inference_mode()
def test_pieces_that_come_one_by_one_are_read_as_all_at_once(ours: Transformer):
    batch = batch_with_source()
    state, found = DecoderState(), []
    for place in range(max(TARGETS)):
        ids = batch.input_ids[:, place : place + 1]
        step = Batch(ids, torch.zeros_like(ids), torch.ones(3).long(), source=None if place else batch.source)
        encoded = ours(step, state)
        assert isinstance(encoded.state, DecoderState)
        state = encoded.state
        found.append(encoded.last_hidden_state)
    whole = ours(batch).to_padded()
    assert float((torch.stack(found, 1) - whole)[real(batch)].abs().max()) < CLOSE
    assert state.cache.length == max(TARGETS)


@torch.inference_mode()
def test_several_rows_may_go_on_with_one_source(ours: Transformer):
    source = batch_of_lengths((6, 4), 3)
    ids = torch.tensor([[7], [8], [9], [10]])  # two rows of each source, which lie together
    together = ours(
        Batch(ids, torch.zeros_like(ids), torch.ones(4).long(), source=source), DecoderState()
    ).last_hidden_state
    for row in range(4):
        own = Batch(source.input_ids[row // 2][None], torch.zeros(1, 6).long(), source.lengths[row // 2][None])
        alone = ours(
            Batch(ids[row][None], torch.zeros(1, 1).long(), torch.ones(1).long(), source=own), DecoderState()
        ).last_hidden_state
        assert float((together[row] - alone[0]).abs().max()) < CLOSE


def test_a_target_reads_to_the_left_and_all_of_its_source_but_padding():
    ours = randomize_parameters(Transformer(SIZES)).double().eval()
    ids, source = torch.arange(5, 14)[None], torch.arange(20, 32)[None]  # every piece stands once
    before = Batch(source, torch.zeros_like(source), torch.tensor([10]))
    rows = Batch(ids, torch.zeros_like(ids), torch.tensor([9]), source=before)
    ours(rows).to_padded()[0, 3].sum().backward()
    slopes = ours.token_embeddings.weight.grad
    assert slopes is not None
    assert bool((slopes[5:9].abs().sum(1) > 0).all())
    assert float(slopes[9:14].abs().max()) == 0
    assert bool((slopes[20:30].abs().sum(1) > 0).all())
    assert float(slopes[30:32].abs().max()) == 0


@torch.no_grad()
def test_the_last_layer_of_the_decoder_at_some_places_is_that_of_all(ours: Transformer):
    batch, places = batch_with_source(), torch.tensor([20, 3, 0])
    assert torch.equal(ours(batch).gather(places), ours(batch, positions=places).gather(places))


def test_the_same_seeds_drop_the_same_and_the_decoder_drops_other_values_than_the_encoder():
    ours = Transformer(SIZES, torch.Generator().manual_seed(0)).train()
    batch = batch_of_lengths((9, 9, 9), 4)
    batch = replace(batch, source=batch)
    seeds = DropoutSeeds(torch.tensor(5, dtype=torch.int32))
    once, again = ours(batch, seeds=seeds), ours(batch, seeds=seeds)
    assert torch.equal(once.last_hidden_state, again.last_hidden_state)
    encoder = ours(replace(batch, source=None), seeds=seeds)
    assert not torch.equal(once.hidden_states[0] == 0, encoder.hidden_states[0] == 0)
    ours.set_dropout(0.0)
    assert torch.allclose(ours(batch, seeds=seeds).last_hidden_state, ours.eval()(batch).last_hidden_state, atol=1e-5)


def test_layers_that_are_computed_again_give_the_same_gradients():
    batch = batch_with_source()
    found = []
    for recomputes in (False, True):
        ours = Transformer(SIZES, torch.Generator().manual_seed(0)).train()
        ours.activation_checkpointing = recomputes
        ours(batch, seeds=DropoutSeeds(torch.tensor(5, dtype=torch.int32))).last_hidden_state.square().sum().backward()
        found.append([one.grad for one in ours.parameters() if one.grad is not None])
    assert len(found[0]) == len(list(Transformer(SIZES).parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_positions_are_the_waves_of_the_paper():
    table = sinusoidal_positions(3, 4)
    expected = [[0, 0, 1, 1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]]
    assert torch.allclose(table[:2], torch.tensor(expected))


def test_a_decoder_that_differs_from_its_encoder_is_refused():
    config = family_of("marian").config_to_dict(SIZES, [])
    with pytest.raises(SettingsError, match="decoder_ffn_dim is 8"):
        family_of("marian").config_from_dict({**config, "decoder_ffn_dim": 8})
    with pytest.raises(SettingsError, match="share_encoder_decoder_embeddings"):
        family_of("marian").config_from_dict({**config, "share_encoder_decoder_embeddings": False})


def test_a_carried_state_of_chosen_sources_is_theirs():
    ours = randomize_parameters(Transformer(SIZES)).eval()
    source = batch_of_lengths((6, 4), 3)
    ids = torch.tensor([[7], [8]])
    with torch.no_grad():
        state = ours(Batch(ids, torch.zeros_like(ids), torch.ones(2).long(), source=source), DecoderState()).state
        assert isinstance(state, DecoderState)
        assert state.source_cache is not None
        rows = torch.tensor([1])
        carried = EncoderState(1, tuple((keys[rows], values[rows]) for keys, values in state.cache.layers))
        step = Batch(ids, torch.zeros_like(ids), torch.ones(2).long())
        whole = ours(step, state).last_hidden_state
        alone = ours(
            Batch(ids[1:], ids[1:] * 0, torch.ones(1).long()),
            DecoderState(carried, state.source_cache.select_sequences(rows)),
        ).last_hidden_state
    assert float((whole[1] - alone[0]).abs().max()) < CLOSE
