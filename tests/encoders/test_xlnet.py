"""XLNet against transformers: two-stream attention, memory, segments; what positions attend to, by gradient."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from bertworks.encoders.config import config_from_dict, config_to_dict
from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.families import ENCODERS, architecture_of
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.xlnet import Xlnet, XlnetConfig, tensor_names
from bertworks.errors import InputError, SettingsError
from bertworks.models.tensor_names import load_into
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
CONFIG = XlnetConfig(vocab_size=70, d_model=24, n_layer=3, n_head=3, d_inner=96, n_positions=40)


def randomize(module: torch.nn.Module) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.1, 0.3, generator=generator)
    return module.eval()


def make_pair(config: XlnetConfig = CONFIG) -> tuple[Xlnet, Any]:
    """Our encoder and transformers' language model, with the same weights."""
    config_dict = config_to_dict(config, [architecture_of(config, "permutation")])
    peer = randomize(transformers.XLNetLMHeadModel(transformers.XLNetConfig(**config_dict)))
    ours = Xlnet(config).eval()
    load_into(ours, dict(peer.state_dict()), tensor_names(config))
    return ours, peer


def make_batch(lengths: tuple[int, ...], num_targets: int = 0, seed: int = 0) -> Batch:
    """Sequences of random tokens in three segments, each with `num_targets` positions to predict."""
    generator = torch.Generator().manual_seed(seed)
    max_length = max(lengths)
    input_ids = torch.randint(5, 70, (len(lengths), max_length), generator=generator)
    token_type_ids = torch.randint(0, 3, input_ids.shape, generator=generator)
    batch = Batch(input_ids=input_ids, token_type_ids=token_type_ids, lengths=torch.tensor(lengths))
    if not num_targets:
        return batch
    permutation = torch.zeros_like(input_ids)
    positions = []
    for sequence, length in enumerate(lengths):
        targets = torch.randperm(length - 1, generator=generator)[:num_targets] + 1  # the first is never predicted
        permutation[sequence, targets] = torch.arange(1, num_targets + 1)
        positions += (sequence * max_length + targets.sort().values).tolist()
    return replace(batch, permutation=permutation, positions=torch.tensor(positions))


def make_perm_mask(batch: Batch) -> torch.Tensor:
    """transformers' mask of a permutation, position by position: 1 where attention is not allowed."""
    assert batch.permutation is not None
    orders = batch.permutation.tolist()
    length = len(orders[0])
    mask = torch.ones(len(orders), length, length)
    for sequence, order in enumerate(orders):
        for query, query_order in enumerate(order):
            for key, key_order in enumerate(order):
                if key_order == 0 or 0 < key_order < query_order:
                    mask[sequence, query, key] = 0
    return mask


def compute_logits(ours: Xlnet, peer: Any, vectors: torch.Tensor) -> torch.Tensor:
    return (vectors @ ours.token_embeddings.weight.t() + peer.lm_loss.bias).detach()


@pytest.mark.parametrize("lengths", [(12, 12), (14, 9, 11)], ids=["full", "ragged"])
def test_the_query_stream_equals_that_of_transformers(lengths: tuple[int, ...]):
    ours, peer = make_pair()
    batch = make_batch(lengths, num_targets=4)
    num_sequences, length = batch.input_ids.shape
    mapping = torch.nn.functional.one_hot(batch.positions.view(num_sequences, 4) % length, length).float()
    is_token = (torch.arange(length) < batch.lengths[:, None]).float()
    with torch.no_grad():
        vectors = ours(batch, positions=batch.positions).gather(batch.positions)
        expected = peer(
            batch.input_ids,
            attention_mask=is_token,
            token_type_ids=batch.token_type_ids,
            perm_mask=make_perm_mask(batch),
            target_mapping=mapping,
        ).logits
    assert float((compute_logits(ours, peer, vectors) - expected.flatten(0, 1)).abs().max()) < TOLERANCE


def test_sequences_may_have_different_numbers_of_targets():
    ours, _ = make_pair()
    batch = make_batch((12, 12), num_targets=3)
    some = batch.positions[[0, 2, 3, 4, 5]]  # without the second target of the first sequence
    with torch.no_grad():
        whole, partial = ours(batch, positions=batch.positions), ours(batch, positions=some)
    assert float((whole.last_hidden_state[[0, 2, 3, 4, 5]] - partial.gather(some)).abs().max()) < TOLERANCE


def test_gradients_of_both_streams_equal_those_of_transformers():
    ours, peer = make_pair()
    batch = make_batch((12, 12), num_targets=4)
    mapping = torch.nn.functional.one_hot(batch.positions.view(2, 4) % 12, 12).float()
    ours(batch, positions=batch.positions).last_hidden_state.square().sum().backward()
    peer_inputs = {
        "perm_mask": make_perm_mask(batch),
        "target_mapping": mapping,
        "token_type_ids": batch.token_type_ids,
    }
    peer.transformer(batch.input_ids, **peer_inputs).last_hidden_state.square().sum().backward()
    expected = dict(peer.named_parameters())
    for name, (theirs,) in tensor_names(CONFIG).items():
        if theirs.startswith("transformer.pooler."):
            continue
        gradient = ours.get_parameter(name).grad
        assert gradient is not None, name
        scale = float(expected[theirs].grad.abs().max())
        assert float((gradient - expected[theirs].grad).abs().max()) < 1e-4 * max(scale, 1e-2), name


@pytest.mark.parametrize("mem_len", [None, 5, 16])
def test_the_memory_equals_that_of_transformers_over_three_batches(mem_len: int | None):
    ours, peer = make_pair(replace(CONFIG, mem_len=mem_len))
    state, mems = EncoderState(), None
    for number in range(3):
        batch = make_batch((8, 8), seed=number)
        with torch.no_grad():
            encoded = ours(batch, state)
            expected = peer(batch.input_ids, token_type_ids=batch.token_type_ids, mems=mems, use_mems=True)
        assert isinstance(encoded.state, EncoderState)
        state, mems = encoded.state, expected.mems
        logits = compute_logits(ours, peer, encoded.to_padded())
        assert float((logits - expected.logits).abs().max()) < TOLERANCE
        assert state.length == 8 * (number + 1)
        for (mine, _), theirs in zip(state.layers, mems, strict=True):
            assert mine.shape[1] == theirs.shape[0]
            assert float((mine - theirs.transpose(0, 1)).abs().max()) < TOLERANCE


def test_a_permutation_with_a_memory_equals_transformers():
    ours, peer = make_pair()
    before, batch = make_batch((6, 6), seed=3), make_batch((10, 10), num_targets=3)
    mapping = torch.nn.functional.one_hot(batch.positions.view(2, 3) % 10, 10).float()
    with torch.no_grad():
        state = ours(before, EncoderState()).state
        vectors = ours(batch, state, positions=batch.positions).gather(batch.positions)
        mems = peer(before.input_ids, token_type_ids=before.token_type_ids, use_mems=True).mems
        peer_inputs = {
            "perm_mask": make_perm_mask(batch),
            "target_mapping": mapping,
            "token_type_ids": batch.token_type_ids,
        }
        expected = peer(batch.input_ids, mems=mems, use_mems=True, **peer_inputs).logits
    assert float((compute_logits(ours, peer, vectors) - expected.flatten(0, 1)).abs().max()) < TOLERANCE


def test_a_memory_of_different_lengths_equals_that_of_each_sequence_alone():
    ours = randomize(Xlnet(CONFIG)).double()
    before, batch = make_batch((9, 4), seed=1), make_batch((5, 7), seed=2)
    with torch.no_grad():
        together = ours(batch, ours(before, EncoderState()).state).to_padded()
        for sequence in range(2):
            first, second = int(before.lengths[sequence]), int(batch.lengths[sequence])
            first_part = Batch(
                input_ids=before.input_ids[sequence : sequence + 1, :first],
                token_type_ids=before.token_type_ids[sequence : sequence + 1, :first],
                lengths=torch.tensor([first]),
            )
            continuation = Batch(
                input_ids=batch.input_ids[sequence : sequence + 1, :second],
                token_type_ids=batch.token_type_ids[sequence : sequence + 1, :second],
                lengths=torch.tensor([second]),
            )
            expected = ours(continuation, ours(first_part, EncoderState()).state).to_padded()
            assert float((together[sequence, :second] - expected[0]).abs().max()) < 1e-10


def test_a_memory_of_another_number_of_sequences_is_refused():
    ours = Xlnet(CONFIG).eval()
    state = ours(make_batch((5, 5)), EncoderState()).state
    with pytest.raises(InputError, match="the memory is of 2 sequences, but the batch has 3"):
        ours(make_batch((5, 5, 5)), state)


def test_neither_stream_attends_to_later_tokens_of_the_permutation():
    ours = randomize(Xlnet(CONFIG)).double()
    batch = make_batch((10,), num_targets=4)
    order = batch.permutation[0].tolist()
    layout, query_stream = ours._create_memory_layout(batch, EncoderState(), batch.positions)
    for num_layers in range(1, CONFIG.n_layer + 1):
        model = ours if num_layers == CONFIG.n_layer else randomize(Xlnet(replace(CONFIG, n_layer=num_layers))).double()
        values = model.embed(batch, layout).detach().requires_grad_()
        states = model._forward_streams(values, layout, None, (EncoderState(), query_stream))
        # The query stream: tokens that come before in the permutation, and never its own.
        for index, position in enumerate(batch.positions.tolist()):
            output = states[-1][query_stream.output_positions.order[index]].sum()
            (gradient,) = torch.autograd.grad(output, values, retain_graph=True)
            seen = {other for other in range(10) if float(gradient[other].abs().max()) > 0}
            assert seen == {other for other in range(10) if order[other] < order[position]}
        # The content stream: these and its own token; positions that are not predicted see no targets.
        if num_layers == 1:
            continue
        for position in range(10):
            (gradient,) = torch.autograd.grad(states[-2][position].sum(), values, retain_graph=True)
            seen = {other for other in range(10) if float(gradient[other].abs().max()) > 0}
            assert seen == {other for other in range(10) if order[other] < max(order[position], 1)} | {position}


def test_changing_a_token_changes_only_later_predictions():
    ours = randomize(Xlnet(CONFIG)).double()
    batch = make_batch((10,), num_targets=4)
    order = batch.permutation[0]
    with torch.no_grad():
        predictions = ours(batch, positions=batch.positions).last_hidden_state
        for position in batch.positions.tolist():
            changed = batch.input_ids.clone()
            changed[0, position] = (changed[0, position] + 7) % 70
            after = ours(replace(batch, input_ids=changed), positions=batch.positions).last_hidden_state
            has_changed = (predictions - after).abs().amax(1) > 0
            assert has_changed.tolist() == (order[batch.positions] > order[position]).tolist()


def test_dropout_follows_the_seeds_and_activation_checkpointing_changes_nothing():
    config = replace(CONFIG, dropout=0.2)
    ours = randomize(Xlnet(config)).train()
    batch = make_batch((10, 9), num_targets=3)
    gradients = []
    for seed, is_checkpointed in ((1, False), (1, True), (2, False)):
        ours.activation_checkpointing = is_checkpointed
        ours.zero_grad()
        seeds = DropoutSeeds(torch.tensor(seed, dtype=torch.int32))
        ours(batch, seeds=seeds, positions=batch.positions).last_hidden_state.square().sum().backward()
        gradients.append(ours.mask_embedding.grad.clone())
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


def test_set_dropout_includes_attention():
    ours = Xlnet(CONFIG)
    ours.set_dropout(0.0)
    ours.train()
    batch = make_batch((10, 9))
    first, second = (
        ours(batch, seeds=DropoutSeeds(torch.tensor(seed, dtype=torch.int32))).last_hidden_state for seed in (1, 2)
    )
    assert torch.equal(first, second)


REFUSED = {
    "unidirectional attention": ({"attn_type": "uni"}, "attn_type is 'uni'"),
    "clamped distances": ({"clamp_len": 400}, "clamp_len is 400"),
    "another pooling": ({"summary_type": "mean"}, "summary_type is 'mean'"),
    "another head size": ({"d_head": 5}, "d_head is 5"),
    "an invalid memory": ({"mem_len": "long"}, "mem_len should be a whole number"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_values_that_are_not_implemented_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match=message):
        config_from_dict(XlnetConfig, {**config_to_dict(CONFIG, ["XLNetModel"]), **change})


def test_the_released_config_is_read():
    config = config_from_dict(XlnetConfig, transformers.XLNetConfig(mem_len=None).to_dict())
    assert (config.d_model, config.n_layer, config.n_head, config.d_inner) == (1024, 24, 16, 4096)
    assert (config.mem_len, config.n_positions, config.vocab_size) == (None, 512, 32_000)


def test_question_answering_uses_transformers_simple_class():
    assert architecture_of(CONFIG, "spans") == "XLNetForQuestionAnsweringSimple"
    assert hasattr(transformers, architecture_of(CONFIG, "spans"))
    assert ENCODERS["xlnet"].heads["spans"]["score.weight"] == ("qa_outputs.weight",)
