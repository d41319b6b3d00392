"""ELMo: its highway by hand, its LSTMs as torch's, which way each half reads, padding, writing, strokes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertworks.encoders.elmo import Elmo, ElmoConfig, Highway, SpellingEncoder, config_from_dict, config_from_preset
from bertworks.encoders.families import ENCODERS, architecture_of
from bertworks.errors import SettingsError
from bertworks.objectives.bilm import BiLmObjective
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.spelling import spell_word
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "cats", "dog", "a", "mouse", "extraordinary")
SIZES = replace(
    config_from_preset("tiny", len(WORDS)),
    hidden_size=12,
    intermediate_size=10,
    filters=((1, 4), (2, 3), (5, 6)),
    max_position_embeddings=40,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_backend(KINDS["words"].build(Inventory(WORDS), cased=False))


def built(tokenizer: Tokenizer, sizes: ElmoConfig = SIZES, seed: int = 0) -> Elmo:
    encoder = Elmo(sizes, torch.Generator().manual_seed(seed)).double().eval()
    encoder.set_tokenizer(tokenizer)
    return encoder


def batch_of_ids(rows: Sequence[Sequence[int]], width: int = 0) -> Batch:
    width = max(width, *map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    return Batch(ids, torch.zeros_like(ids), torch.tensor([len(row) for row in rows]))


def test_a_highway_mixes_what_is_new_with_what_came_by_its_gate():
    highway = Highway(2)
    with torch.no_grad():
        highway.transform.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, -1.0]]))
        highway.transform.bias.copy_(torch.tensor([1.0, 0.0]))
        highway.gate.weight.zero_()
        highway.gate.bias.copy_(torch.tensor([3.0, 1.0]).log())  # shares of three quarters and a half
    found = highway(torch.tensor([[1.0, 4.0]]))
    # New: relu(2 * 1 + 1) = 3 and relu(-4) = 0; so 0.75 * 3 + 0.25 * 1 and 0.5 * 0 + 0.5 * 4.
    torch.testing.assert_close(found, torch.tensor([[2.5, 2.0]]))


def test_a_filter_says_the_most_it_finds_in_a_word():
    sizes = replace(SIZES, filters=((1, 1), (2, 1)), num_highway_layers=0, symbol_embedding_size=1, hidden_size=4)
    part = SpellingEncoder(sizes)
    with torch.no_grad():
        part.symbol_embeddings.weight.copy_(torch.arange(256.0)[:, None])
        for layer in part.convolutions:
            layer.weight.fill_(1.0)
            layer.bias.zero_()
        part.projection.weight.copy_(torch.eye(2))
        part.projection.bias.zero_()
    # The largest symbol, and the largest sum of two that stand together: 5 + 1, not 5 + 4.
    assert part(torch.tensor([[1, 5, 1, 4, 0, 0]])).tolist() == [[5.0, 6.0]]


def test_padding_behind_a_word_changes_nothing():
    part = SpellingEncoder(SIZES).double()
    word = torch.tensor([[1, 97, 2]])  # shorter than the widest filter
    wide = torch.tensor([[1, 97, 2, 0, 0, 0, 0, 0, 0, 0]])
    long = torch.tensor([[1, *b"abcdefgh", 2]])
    alone = part(word)
    torch.testing.assert_close(part(wide), alone)
    torch.testing.assert_close(part(torch.cat([wide, long]))[:1], alone)


def test_the_halves_are_torchs_lstms_the_second_over_turned_rows(tokenizer: Tokenizer):
    encoder = built(tokenizer)
    batch = batch_of_ids([[2, 5, 8, 7, 3], [2, 9, 3]])
    with torch.no_grad():
        found = encoder(batch)
        for row, length in enumerate(batch.lengths.tolist()):
            given = found.to_padded(0)[row, :length]
            torch.testing.assert_close(given[:, :6], given[:, 6:])
            for number, layer in enumerate(encoder.layers):
                ahead = layer.forward_lstm(given[None, :, :6])[0][0]
                back = layer.backward_lstm(given.flip(0)[None, :, 6:])[0][0].flip(0)
                read = torch.cat([ahead, back], 1)
                given = given + read if number else read  # the second layer adds what entered it
                torch.testing.assert_close(found.to_padded(number + 1)[row, :length], given)


def test_the_half_ahead_cannot_see_later_words_and_the_half_back_not_earlier_ones(tokenizer: Tokenizer):
    encoder = built(tokenizer)
    batch = batch_of_ids([[2, 5, 8, 7, 9, 10, 3]])
    layout = encoder.create_layout(batch)
    for half, unseen, seen in ((slice(0, 6), slice(4, 7), slice(0, 4)), (slice(6, 12), slice(0, 3), slice(3, 7))):
        values = encoder.embed(batch, layout).detach().requires_grad_()
        encoder.forward_layers(values, layout).last_hidden_state[3, half].sum().backward()
        assert values.grad is not None
        assert values.grad[unseen].abs().max() == 0
        assert values.grad[seen, half].abs().max(1).values.min() > 0


def test_the_summary_has_read_the_whole_row_both_ways(tokenizer: Tokenizer):
    encoder = built(tokenizer)
    with torch.no_grad():
        found = encoder(batch_of_ids([[2, 5, 3], [2, 9, 8, 7, 6, 5, 3]]))
    assert found.pooled is not None
    for row, length in enumerate((3, 7)):
        last = found.to_padded()[row]
        torch.testing.assert_close(found.pooled[row], torch.cat([last[length - 1, :6], last[0, 6:]]))


def test_a_word_outside_the_vocabulary_is_read_as_it_is_written(tokenizer: Tokenizer):
    encoder = built(tokenizer)
    known = batch_of_ids([[2, 5, 6, 3], [2, 10, 3]])
    unknown = batch_of_ids([[2, 1, 6, 3], [2, 1, 3]])  # cat and extraordinary are read as [UNK], cats is known
    with torch.no_grad():
        expected = encoder(known)
        found = encoder(replace(unknown, unknown={1: "cat", 5: "extraordinary"}))
        same = encoder(unknown)
    for number in range(3):
        torch.testing.assert_close(found.to_padded(number), expected.to_padded(number))
    assert (same.to_padded(0)[0, 1] == same.to_padded(0)[1, 1]).all()
    assert (found.to_padded(0)[0, 1] - found.to_padded(0)[1, 1]).abs().max() > 0.01


def test_beside_strokes_an_unknown_word_has_the_vector_of_all_unknown_ones(tokenizer: Tokenizer):
    encoder = built(tokenizer, replace(SIZES, spelling="strokes"))
    batch = replace(batch_of_ids([[2, 1, 1, 3]]), unknown={1: "江", 2: "河"})
    with torch.no_grad():
        first, second = encoder.embed(batch, encoder.create_layout(batch))[1:3, :6]
        (written,) = encoder.spelling_encoder(torch.from_numpy(spell_word("江", "strokes", 50))[None])
        torch.testing.assert_close(first, encoder.token_embeddings.weight[1] + written)
    assert (first - second).abs().max() > 0.01


def test_words_alone_know_nothing_of_writing(tokenizer: Tokenizer):
    encoder = built(tokenizer, replace(SIZES, spelling="words"))
    batch = batch_of_ids([[2, 1, 3]])
    with torch.no_grad():
        torch.testing.assert_close(
            encoder(replace(batch, unknown={1: "cat"})).last_hidden_state, encoder(batch).last_hidden_state
        )


def test_strokes_come_with_a_vector_of_the_word_and_words_alone_are_not_spelled(tokenizer: Tokenizer):
    both, alone = (built(tokenizer, replace(SIZES, spelling=name)) for name in ("strokes", "words"))
    ids, none = torch.tensor([5, 7]), torch.zeros(2)
    assert list(both.embedding_components(ids, none)) == ["token", "spelling"]
    assert list(alone.embedding_components(ids, none)) == ["token"]
    assert "spelling" not in alone.state_dict()
    batch = batch_of_ids([[5, 7]])
    with torch.no_grad():
        summed = sum(both.embedding_components(ids, none).values())
        torch.testing.assert_close(both.embed(batch, both.create_layout(batch))[:, :6], summed)


# Characters that share a component: water, hand, tree, speech, metal, heart, mouth, grass.
ALIKE = (
    "江河湖海洋波",
    "打拍提扫抓拉",
    "林松柏桃梅柳",
    "说话语读谈认",
    "铁钢铜银针钉",
    "情怕忙快恨惊",
    "吃喝叫唱吹咬",
    "花草茶菜苗荷",
)


def learned(spelling: str, seed: int) -> Elmo:
    """An ELMo that has learned which mark stands behind the characters of each group, by nothing but their strokes."""
    characters = [character for group in ALIKE for character in group]
    pieces = (*WORDS[:5], *characters, *"abcdefgh")
    tokenizer = Tokenizer.from_backend(KINDS["words"].build(Inventory(pieces), cased=False))
    sizes = replace(
        SIZES, vocab_size=len(pieces), hidden_size=48, intermediate_size=40, spelling=spelling, hidden_dropout_prob=0.0
    )
    generator = torch.Generator().manual_seed(seed)
    encoder = Elmo(replace(sizes, filters=((3, 64), (4, 64), (5, 64), (6, 64))), generator)
    encoder.set_tokenizer(tokenizer)
    with torch.no_grad():
        encoder.token_embeddings.requires_grad_(False).weight.zero_()
    module = BiLmObjective(encoder, generator)
    marks = 5 + len(characters) + torch.arange(len(characters)) // 6
    batch = batch_of_ids([[2, word, mark, 3] for word, mark in enumerate(marks.tolist(), 5)])
    batch = replace(batch, positions=torch.arange(len(characters)) * 4 + 1, targets=marks)
    optimizer = torch.optim.Adam([one for one in module.parameters() if one.requires_grad], 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        module(batch, {"bilm": 1 / (2 * len(marks))}).value.backward()
        optimizer.step()
    return encoder.eval()


def nearness(encoder: Elmo, spelling: str) -> float:
    """How near the characters of a group are to one another, on average over the groups, by what their strokes say."""
    table = np.stack(
        [spell_word(character, spelling, SIZES.max_symbols_per_word) for group in ALIKE for character in group]
    )
    assert encoder.spelling_encoder is not None
    with torch.no_grad():
        vectors = encoder.spelling_encoder(torch.from_numpy(table))
    vectors = torch.nn.functional.normalize(vectors - vectors.mean(0), dim=1).view(len(ALIKE), 6, -1)
    near = vectors @ vectors.transpose(1, 2)  # (groups, 6, 6)
    return float((near.sum() - near.diagonal(dim1=1, dim2=2).sum()) / (len(ALIKE) * 30))


@pytest.mark.parametrize("seed", [0, 1])
def test_characters_that_share_a_component_are_nearer_than_with_a_shuffled_table(seed: int):
    """Before anything is learned, and after: what a group has in common is learned the sooner, the more it shares."""
    sizes = replace(config_from_preset("small", 10), intermediate_size=300, spelling="strokes")
    drawn = Elmo(sizes, torch.Generator().manual_seed(seed))
    assert nearness(drawn, "strokes") > nearness(drawn, "shuffled-strokes") + 0.1
    found = {spelling: nearness(learned(spelling, seed), spelling) for spelling in ("strokes", "shuffled-strokes")}
    assert found["strokes"] > found["shuffled-strokes"] + 0.1, found


def test_a_config_that_lacks_something_is_refused():
    config = ENCODERS["elmo"].config_to_dict(SIZES, [architecture_of(SIZES)])
    assert config_from_dict(config) == SIZES
    del config["filters"]
    with pytest.raises(SettingsError, match="filters is missing"):
        config_from_dict(config)
    with pytest.raises(SettingsError, match="pairs of whole numbers"):
        config_from_dict({**config, "filters": [3, 4]})


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(SettingsError, match="choose an even one"):
        replace(SIZES, hidden_size=13)
    with pytest.raises(SettingsError, match="no size 'huge' of ELMo"):
        config_from_preset("huge", 10)
    with pytest.raises(SettingsError, match="6 cells cannot be projected to 6 values"):
        replace(SIZES, intermediate_size=6)
    with pytest.raises(SettingsError, match="no scoring 'quick'; choose one of: adaptive, sampled, full"):
        replace(SIZES, softmax_kind="quick")


def test_a_folder_that_does_not_say_how_words_are_told_is_an_older_one():
    config = ENCODERS["elmo"].config_to_dict(replace(SIZES, softmax_kind="sampled"), [architecture_of(SIZES)])
    assert config_from_dict(config).softmax_kind == "sampled"
    del config["softmax_kind"]
    assert config_from_dict(config).softmax_kind == "adaptive"
