"""Recurrent heads: the positions they read, independence of padding, and what each of the three computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from bertworks.embeddings.strategies import STRATEGIES
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch
from bertworks.tasks.answer import Answer
from bertworks.tasks.choose import Choose
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.tasks.recurrent_head import BiLstmLayer, BiLstmPointer, RecurrentHead, RecurrentSettings, packing_of
from bertworks.tasks.regress import Regress
from bertworks.tasks.tag import Tag

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = BertConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=24,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.3,
)
TASKS: dict[str, Task] = {
    "classify": Classify(labels=("a", "b", "c")),
    "regress": Regress(),
    "choose": Choose(),
    "tag": Tag(labels=("O", "B-X", "I-X")),
    "answer": Answer(),
}
# Lengths of the sequences; tagging predicts the positions from 2 to the last but one.
LENGTHS = (9, 5, 12, 6)


def make_batch(lengths: Sequence[int], max_length: int = 0, has_positions: bool = False) -> Batch:
    """Sequences of consecutive ids, the first three positions in segment A; padded to `max_length`."""
    max_length = max_length or max(lengths)
    input_ids = torch.zeros(len(lengths), max_length, dtype=torch.int64)
    token_type_ids = torch.zeros_like(input_ids)
    positions = []
    for sequence, length in enumerate(lengths):
        input_ids[sequence, :length] = torch.arange(length) * (length + 1) % 19 + 1
        token_type_ids[sequence, 3:length] = 1
        positions += [sequence * max_length + position for position in range(2, length - 1)]
    return Batch(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        lengths=torch.tensor(lengths),
        positions=torch.tensor(positions) if has_positions else None,
        pair_starts=torch.full((len(lengths),), 3),
    )


def make_module(task: Task, strategy: str = "last", dropout: float = 0.0, hidden_size: int = 6) -> TaskModule:
    generator = torch.Generator().manual_seed(0)
    encoder = Bert(replace(CONFIG, hidden_dropout_prob=dropout), generator)
    return TaskModule(encoder, task, generator, recurrent=RecurrentSettings(strategy, hidden_size))


def predicts_positions(task: Task) -> bool:
    return isinstance(task, Tag)


def test_packing_of_whole_sequences():
    packing = packing_of(make_batch([2, 3], max_length=4))
    assert packing.lengths.tolist() == [2, 3]
    assert packing.starts.tolist() == [0, 2]
    assert packing.positions.tolist() == [0, 1, 4, 5, 6]
    assert packing.padded_positions.tolist() == [0, 1, 3, 4, 5]
    assert packing.shape == (2, 3)
    assert packing.backward_order.padded_positions.tolist() == [1, 0, 5, 4, 3]


def test_packing_spans_the_first_to_the_last_target_position():
    batch = make_batch([6, 6, 6])
    batch = replace(
        batch, positions=torch.tensor([2, 4, 12 + 1])
    )  # in the first and the last sequence; the second has none
    packing = packing_of(batch)
    assert packing.lengths.tolist() == [3, 1, 1]
    assert packing.first_positions.tolist() == [2, 0, 1]
    assert packing.positions.tolist() == [2, 3, 4, 6, 13]


def test_bilstm_layer_equals_torch_s_bidirectional_lstm_on_each_sequence():
    generator = torch.Generator().manual_seed(0)
    layer = BiLstmLayer(5, 4)
    packing = packing_of(make_batch(LENGTHS, max_length=15))
    values = torch.randn(sum(LENGTHS), 5, generator=generator)
    outputs = layer(values, packing)
    peer = nn.LSTM(5, 4, bidirectional=True, batch_first=True)
    for suffix, lstm in (("", layer.forward_lstm), ("_reverse", layer.backward_lstm)):
        for name, parameter in lstm.named_parameters():
            getattr(peer, name + suffix).data.copy_(parameter.data)
    start = 0
    for length in LENGTHS:
        alone = peer(values[start : start + length][None])[0][0]
        torch.testing.assert_close(outputs[start : start + length], alone, atol=1e-6, rtol=1e-5)
        start += length


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_outputs_do_not_depend_on_padding_or_batching(task: Task):
    module = make_module(task).eval()
    has_positions = predicts_positions(task)
    with torch.inference_mode():
        together = module.outputs(make_batch(LENGTHS, max_length=20, has_positions=has_positions))
        alone = [module.outputs(make_batch([length], has_positions=has_positions)) for length in LENGTHS]
    if isinstance(task, Answer):
        for sequence, (length, alone_output) in enumerate(zip(LENGTHS, alone, strict=True)):
            torch.testing.assert_close(together[sequence, :length], alone_output[0], atol=1e-6, rtol=1e-5)
            assert (together[sequence, length:] == -math.inf).all()
    else:
        torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_gradients_reach_the_whole_head_and_not_the_encoder(task: Task):
    module = make_module(task, "sum-all")
    module.train()
    assert module.head.training
    assert not module.encoder.training
    outputs = module.outputs(make_batch(LENGTHS, has_positions=predicts_positions(task)))
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    (outputs.masked_fill(outputs == -math.inf, 0.0) * weights).sum().backward()
    assert all(parameter.grad is None for parameter in module.encoder.parameters())
    for name, parameter in module.head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_dropout_follows_from_the_seeds_and_only_in_training(task: Task):
    module = make_module(task, dropout=0.3)
    batch = make_batch(LENGTHS, has_positions=predicts_positions(task))
    seeds = [DropoutSeeds(torch.tensor(number, dtype=torch.int32)) for number in (1, 1, 2)]
    module.train()
    first, same, other = (module.outputs(batch, one) for one in seeds)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    module.eval()
    assert torch.equal(module.outputs(batch, seeds[0]), module.outputs(batch))


def test_initialization_depends_on_the_generator_only():
    heads = []
    for number in (3, 4):
        torch.manual_seed(number)
        heads.append(make_module(TASKS["answer"]).head.state_dict())
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_the_forget_gate_bias_is_initialized_to_one():
    head = make_module(TASKS["tag"], hidden_size=2).head
    for direction in ("forward_lstm", "backward_lstm"):
        lstm = head.get_submodule(f"body.second.{direction}")
        assert lstm.bias_ih_l0.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
        assert lstm.bias_hh_l0.abs().max() == 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_selects_its_layers_and_input_size(name: str):
    module = make_module(TASKS["tag"], name)
    head = module.head
    assert isinstance(head, RecurrentHead)
    batch = make_batch(LENGTHS, has_positions=True)
    encoded = module.encoder(batch)
    features = head.select_layers(encoded, packing_of(batch))
    layers_by_name = {"embeddings": [0], "second-to-last": [3], "last": [4], "sum-with-embeddings": [0, 1, 2, 3, 4]}
    layers = layers_by_name.get(name, [1, 2, 3, 4])
    assert features.shape == (sum(length - 3 for length in LENGTHS), len(layers), 8)
    assert head.num_layers == len(layers)
    first = encoded.hidden_states[layers[0]][encoded.layout.token_indices(torch.tensor([2]))]
    assert torch.equal(features[0, 0], first[0])
    assert head.get_submodule("body.first.forward_lstm").input_size == (32 if name == "concat-last-four" else 8)
    assert (head.weighted_layers is not None) == name.startswith("sum-")


def test_weighted_layers_are_initialized_to_the_mean():
    module = make_module(TASKS["classify"], "sum-all").eval()
    head = module.head
    assert isinstance(head, RecurrentHead)
    assert head.weighted_layers is not None
    features = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.weighted_layers(features.unbind(1)), features.mean(1))


def test_sequence_outputs_are_max_and_mean_pooled():
    module = make_module(TASKS["classify"]).eval()
    batch = make_batch([4, 3])
    with torch.inference_mode():
        packing = packing_of(batch)
        features = module.head.select_layers(module.encoder(batch), packing)[:, 0]
        values = module.head.body.first(features, packing)
        pooled = torch.stack(
            [
                torch.cat([sequence_values.max(0).values, sequence_values.mean(0)])
                for sequence_values in (values[:4], values[4:])
            ]
        )
        torch.testing.assert_close(module.outputs(batch), module.head.body.score(pooled))


def test_attention_between_passage_and_question_equals_bidaf():
    """Position by position: similarity w·[h; q; h∘q], softmax over the question, then over the passage."""
    body = BiLstmPointer(8, 2, 2).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    nn.init.normal_(body.similarity_weights, generator=generator)
    batch = make_batch([5, 7])
    packing = packing_of(batch)
    values = torch.randn(12, 4, generator=generator)
    attended = body._attend(packing.pad(values), packing, batch.pair_starts)
    start = 0
    for sequence, length in enumerate((5, 7)):
        sequence_values = values[start : start + length]
        start += length
        pairs = [
            [torch.stack([one, question, one * question]) for question in sequence_values[:3]]
            for one in sequence_values
        ]
        similarity = torch.tensor(
            [[float((body.similarity_weights * pair).sum()) for pair in question] for question in pairs]
        )
        passage_vector = (
            torch.softmax(similarity[3:].max(1).values, 0) @ sequence_values[3:]
        )  # the passage begins at position 3
        for position, one in enumerate(sequence_values):
            question_vector = torch.softmax(similarity[position], 0) @ sequence_values[:3]
            expected = torch.cat([one, question_vector, one * question_vector, one * passage_vector])
            torch.testing.assert_close(attended[sequence, position], expected, atol=1e-6, rtol=1e-5)


def test_cached_features_replace_the_encoder():
    module = make_module(TASKS["tag"]).eval()
    batch = make_batch(LENGTHS, has_positions=True)
    with torch.inference_mode():
        expected = module.outputs(batch)
        features = module.head.select_layers(module.encoder(batch), packing_of(batch))
        module.encoder.token_embeddings.weight.fill_(math.nan)
        module.feature_cache = lambda _: features
        assert torch.equal(module.outputs(batch), expected)
        module.feature_cache = lambda _: None
        assert module.outputs(batch).isnan().all()


def test_tensor_names_have_the_head_prefix():
    module = make_module(TASKS["tag"], "sum-all")
    assert set(module.head_names) == set(module.head.state_dict())
    assert module.head_names["weighted_layers.gamma"] == ("bertworks.head.weighted_layers.gamma",)
    assert all(theirs.startswith("bertworks.head.") for (theirs,) in module.head_names.values())


def test_the_default_hidden_size_is_the_encoder_s():
    assert make_module(TASKS["tag"], hidden_size=0).recurrent == RecurrentSettings("last", 8)
    assert make_module(TASKS["tag"], hidden_size=3).head.get_submodule("body.score").in_features == 6


def test_invalid_settings_raise_an_error():
    with pytest.raises(SettingsError, match="no feature strategy 'first'"):
        RecurrentSettings("first")
    with pytest.raises(SettingsError, match="hidden_size is -1"):
        RecurrentSettings("last", -1)
    with pytest.raises(SettingsError, match="'sum-last-four' needs 4 layers, but the model has 2"):
        TaskModule(
            Bert(replace(CONFIG, num_hidden_layers=2)), TASKS["tag"], recurrent=RecurrentSettings("sum-last-four")
        )
