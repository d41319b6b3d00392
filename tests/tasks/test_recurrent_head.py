"""Recurrent heads: which places they read, that padding changes nothing, and what each of the three computes."""

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

SIZES = BertConfig(
    20, 8, 4, 2, 16, 24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.3
)
TASKS: dict[str, Task] = {
    "classify": Classify(("a", "b", "c")),
    "regress": Regress(),
    "choose": Choose(),
    "tag": Tag(("O", "B-X", "I-X")),
    "answer": Answer(),
}
# Rows of these lengths; of a tagged row the places from 2 to the last but one are asked.
LENGTHS = (9, 5, 12, 6)


def batch_of(lengths: Sequence[int], width: int = 0, places: bool = False) -> Batch:
    """Rows of numbered pieces, the first three places in the first segment; padded to `width`."""
    width = width or max(lengths)
    ids = torch.zeros(len(lengths), width, dtype=torch.int64)
    segments = torch.zeros_like(ids)
    asked = []
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.arange(length) * (length + 1) % 19 + 1
        segments[row, 3:length] = 1
        asked += [row * width + place for place in range(2, length - 1)]
    return Batch(ids, segments, torch.tensor(lengths), positions=torch.tensor(asked) if places else None)


def module_of(task: Task, strategy: str = "last", dropout: float = 0.0, width: int = 6) -> TaskModule:
    generator = torch.Generator().manual_seed(0)
    encoder = Bert(replace(SIZES, hidden_dropout_prob=dropout), generator)
    return TaskModule(encoder, task, generator, recurrent=RecurrentSettings(strategy, width))


def asks_places(task: Task) -> bool:
    return isinstance(task, Tag)


def test_whole_rows_are_read_where_no_place_is_asked():
    reading = packing_of(batch_of([2, 3], width=4))
    assert reading.lengths.tolist() == [2, 3]
    assert reading.starts.tolist() == [0, 2]
    assert reading.positions.tolist() == [0, 1, 4, 5, 6]
    assert reading.padded_positions.tolist() == [0, 1, 3, 4, 5]
    assert reading.shape == (2, 3)
    assert reading.backward_order.padded_positions.tolist() == [1, 0, 5, 4, 3]


def test_of_a_row_with_places_the_stretch_from_the_first_to_the_last_is_read():
    batch = batch_of([6, 6, 6])
    batch = replace(batch, positions=torch.tensor([2, 4, 12 + 1]))  # of the first and the last row; the second has none
    reading = packing_of(batch)
    assert reading.lengths.tolist() == [3, 1, 1]
    assert reading.first_positions.tolist() == [2, 0, 1]
    assert reading.positions.tolist() == [2, 3, 4, 6, 13]


def test_both_ways_is_torch_s_bidirectional_lstm_on_every_row_alone():
    generator = torch.Generator().manual_seed(0)
    layer = BiLstmLayer(5, 4)
    reading = packing_of(batch_of(LENGTHS, width=15))
    values = torch.randn(sum(LENGTHS), 5, generator=generator)
    found = layer(values, reading)
    peer = nn.LSTM(5, 4, bidirectional=True, batch_first=True)
    for end, own in (("", layer.forward_lstm), ("_reverse", layer.backward_lstm)):
        for name, parameter in own.named_parameters():
            getattr(peer, name + end).data.copy_(parameter.data)
    start = 0
    for length in LENGTHS:
        alone = peer(values[start : start + length][None])[0][0]
        torch.testing.assert_close(found[start : start + length], alone, atol=1e-6, rtol=1e-5)
        start += length


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_padding_and_neighbours_change_nothing(task: Task):
    module = module_of(task).eval()
    places = asks_places(task)
    with torch.inference_mode():
        together = module.outputs(batch_of(LENGTHS, width=20, places=places))
        alone = [module.outputs(batch_of([length], places=places)) for length in LENGTHS]
    if isinstance(task, Answer):
        for row, (length, own) in enumerate(zip(LENGTHS, alone, strict=True)):
            torch.testing.assert_close(together[row, :length], own[0], atol=1e-6, rtol=1e-5)
            assert (together[row, length:] == -math.inf).all()
    else:
        torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_gradients_reach_all_of_the_head_and_nothing_of_the_encoder(task: Task):
    module = module_of(task, "sum-all")
    module.train()
    assert module.head.training_settings
    assert not module.encoder.training
    outputs = module.outputs(batch_of(LENGTHS, places=asks_places(task)))
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    (outputs.masked_fill(outputs == -math.inf, 0.0) * weights).sum().backward()
    assert all(parameter.grad is None for parameter in module.encoder.parameters())
    for name, parameter in module.head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_what_is_dropped_follows_from_the_seeds_and_only_in_training(task: Task):
    module = module_of(task, dropout=0.3)
    batch = batch_of(LENGTHS, places=asks_places(task))
    seeds = [DropoutSeeds(torch.tensor(number, dtype=torch.int32)) for number in (1, 1, 2)]
    module.train()
    first, same, other = (module.outputs(batch, one) for one in seeds)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    module.eval()
    assert torch.equal(module.outputs(batch, seeds[0]), module.outputs(batch))


def test_the_same_generator_draws_the_same_head_whatever_torch_s_own_does():
    heads = []
    for number in (3, 4):
        torch.manual_seed(number)
        heads.append(module_of(TASKS["answer"]).head.state_dict())
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_the_gate_that_forgets_begins_open():
    head = module_of(TASKS["tag"], width=2).head
    for way in ("ahead", "back"):
        lstm = head.get_submodule(f"body.second.{way}")
        assert lstm.bias_ih_l0.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
        assert lstm.bias_hh_l0.abs().max() == 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_has_its_layers_and_width(name: str):
    module = module_of(TASKS["tag"], name)
    head = module.head
    assert isinstance(head, RecurrentHead)
    batch = batch_of(LENGTHS, places=True)
    encoded = module.encoder(batch)
    taken = head.select_layers(encoded, packing_of(batch))
    others = {"embeddings": [0], "second-to-last": [3], "last": [4], "sum-with-embeddings": [0, 1, 2, 3, 4]}
    layers = others.get(name, [1, 2, 3, 4])
    assert taken.shape == (sum(length - 3 for length in LENGTHS), len(layers), 8)
    assert head.num_layers == len(layers)
    first = encoded.layers[layers[0]][encoded.layout.token_indices(torch.tensor([2]))]
    assert torch.equal(taken[0, 0], first[0])
    assert head.get_submodule("body.first.ahead").input_size == (32 if name == "concat-last-four" else 8)
    assert (head.weighted_layers is not None) == name.startswith("sum-")


def test_a_learned_sum_begins_as_the_mean_of_the_layers():
    module = module_of(TASKS["classify"], "sum-all").eval()
    head = module.head
    assert isinstance(head, RecurrentHead)
    assert head.weighted_layers is not None
    taken = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.weighted_layers(taken.unbind(1)), taken.mean(1))


def test_rows_are_the_greatest_and_the_mean_of_what_the_lstm_says():
    module = module_of(TASKS["classify"]).eval()
    batch = batch_of([4, 3])
    with torch.inference_mode():
        reading = packing_of(batch)
        features = module.head.taken(module.encoder(batch), reading)[:, 0]
        values = module.head.body.first(features, reading)
        pooled = torch.stack([torch.cat([own.max(0).values, own.mean(0)]) for own in (values[:4], values[4:])])
        torch.testing.assert_close(module.outputs(batch), module.head.body.score(pooled))


def test_attention_between_passage_and_question_is_bidaf_s():
    """One place after the other: likeness w·[h; q; h∘q], a softmax over the question, the greatest over the passage."""
    body = BiLstmPointer(8, 2, 2).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    nn.init.normal_(body.similarity_weights, generator=generator)
    batch = batch_of([5, 7])
    reading = packing_of(batch)
    values = torch.randn(12, 4, generator=generator)
    found = body._attend(reading.pad(values), reading, batch.token_type_ids)
    start = 0
    for row, length in enumerate((5, 7)):
        own = values[start : start + length]
        start += length
        pairs = [[torch.stack([one, asked, one * asked]) for asked in own[:3]] for one in own]
        alike = torch.tensor([[float((body.similarity_weights * pair).sum()) for pair in asked] for asked in pairs])
        told = torch.softmax(alike[3:].max(1).values, 0) @ own[3:]  # the passage begins at place 3
        for place, one in enumerate(own):
            read = torch.softmax(alike[place], 0) @ own[:3]
            wanted = torch.cat([one, read, one * read, one * told])
            torch.testing.assert_close(found[row, place], wanted, atol=1e-6, rtol=1e-5)


def test_kept_features_are_used_instead_of_the_encoder():
    module = module_of(TASKS["tag"]).eval()
    batch = batch_of(LENGTHS, places=True)
    with torch.inference_mode():
        wanted = module.outputs(batch)
        taken = module.head.taken(module.encoder(batch), packing_of(batch))
        module.encoder.pieces.weight.fill_(math.nan)
        module.kept = lambda asked: taken
        assert torch.equal(module.outputs(batch), wanted)
        module.kept = lambda asked: None
        assert module.outputs(batch).isnan().all()


def test_the_head_s_tensors_have_names_of_our_own():
    module = module_of(TASKS["tag"], "sum-all")
    assert set(module.head_names) == set(module.head.state_dict())
    assert module.head_names["weighted.gamma"] == ("bertworks.head.weighted.gamma",)
    assert all(theirs.startswith("bertworks.head.") for (theirs,) in module.head_names.values())


def test_the_width_is_the_encoder_s_unless_it_is_given():
    assert module_of(TASKS["tag"], width=0).recurrent == RecurrentSettings("last", 8)
    assert module_of(TASKS["tag"], width=3).head.get_submodule("body.score").in_features == 6


def test_what_cannot_be_is_refused():
    with pytest.raises(SettingsError, match="no choice of layers 'first'"):
        RecurrentSettings("first")
    with pytest.raises(SettingsError, match="recurrent width of -1"):
        RecurrentSettings("last", -1)
    with pytest.raises(SettingsError, match="'sum-last-four' needs 4 layers, but the model has 2"):
        TaskModule(
            Bert(replace(SIZES, num_hidden_layers=2)), TASKS["tag"], recurrent=RecurrentSettings("sum-last-four")
        )
