"""ELMo: highway layers by hand, LSTMs equal to torch's, directions, padding, spelling, strokes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertworks.encoders.config import config_from_dict
from bertworks.encoders.elmo import Elmo, ElmoConfig, Highway, SpellingEncoder
from bertworks.encoders.families import ENCODERS, architecture_of
from bertworks.errors import SettingsError
from bertworks.objectives.bilm import BiLmModule
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.spelling import spell_word
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "cats", "dog", "a", "mouse", "extraordinary")
CONFIG = ElmoConfig(
    vocab_size=len(WORDS), hidden_size=12, lstm_size=10, filters=((1, 4), (2, 3), (5, 6)), max_length=40
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_backend(KINDS["words"].build(Inventory(WORDS), cased=False))


def make_encoder(tokenizer: Tokenizer, config: ElmoConfig = CONFIG, seed: int = 0) -> Elmo:
    encoder = Elmo(config, torch.Generator().manual_seed(seed)).double().eval()
    encoder.set_tokenizer(tokenizer)
    return encoder


def make_batch(sequences: Sequence[Sequence[int]]) -> Batch:
    max_length = max(map(len, sequences))
    input_ids = torch.tensor([[*sequence, *[0] * (max_length - len(sequence))] for sequence in sequences])
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=torch.tensor([len(sequence) for sequence in sequences]),
    )


def test_a_highway_layer_by_hand():
    highway = Highway(2)
    with torch.no_grad():
        highway.transform.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, -1.0]]))
        highway.transform.bias.copy_(torch.tensor([1.0, 0.0]))
        highway.gate.weight.zero_()
        highway.gate.bias.copy_(torch.tensor([3.0, 1.0]).log())  # gates of three quarters and a half
    output = highway(torch.tensor([[1.0, 4.0]]))
    # Transformed: relu(2 * 1 + 1) = 3 and relu(-4) = 0; so 0.75 * 3 + 0.25 * 1 and 0.5 * 0 + 0.5 * 4.
    torch.testing.assert_close(output, torch.tensor([[2.5, 2.0]]))


def test_a_filter_returns_its_maximum_over_a_word():
    config = replace(CONFIG, filters=((1, 1), (2, 1)), num_highway_layers=0, symbol_embedding_size=1, hidden_size=4)
    encoder = SpellingEncoder(config)
    with torch.no_grad():
        encoder.symbol_embeddings.weight.copy_(torch.arange(256.0)[:, None])
        for layer in encoder.convolutions:
            layer.weight.fill_(1.0)
            layer.bias.zero_()
        encoder.projection.weight.copy_(torch.eye(2))
        encoder.projection.bias.zero_()
    # The largest symbol, and the largest sum of two adjacent ones: 5 + 1, not 5 + 4.
    assert encoder(torch.tensor([[1, 5, 1, 4, 0, 0]])).tolist() == [[5.0, 6.0]]


def test_padding_of_a_word_changes_nothing():
    encoder = SpellingEncoder(CONFIG).double()
    word = torch.tensor([[1, 97, 2]])  # shorter than the widest filter
    padded = torch.tensor([[1, 97, 2, 0, 0, 0, 0, 0, 0, 0]])
    long = torch.tensor([[1, *b"abcdefgh", 2]])
    alone = encoder(word)
    torch.testing.assert_close(encoder(padded), alone)
    torch.testing.assert_close(encoder(torch.cat([padded, long]))[:1], alone)


def test_the_directions_equal_torchs_lstms_the_second_over_reversed_sequences(tokenizer: Tokenizer):
    encoder = make_encoder(tokenizer)
    batch = make_batch([[2, 5, 8, 7, 3], [2, 9, 3]])
    with torch.no_grad():
        encoded = encoder(batch)
        for sequence, length in enumerate(batch.lengths.tolist()):
            inputs = encoded.to_padded(0)[sequence, :length]
            torch.testing.assert_close(inputs[:, :6], inputs[:, 6:])
            for index, layer in enumerate(encoder.layers):
                forward = layer.forward_lstm(inputs[None, :, :6])[0][0]
                backward = layer.backward_lstm(inputs.flip(0)[None, :, 6:])[0][0].flip(0)
                outputs = torch.cat([forward, backward], 1)
                inputs = inputs + outputs if index else outputs  # the second layer has a residual connection
                torch.testing.assert_close(encoded.to_padded(index + 1)[sequence, :length], inputs)


def test_the_forward_direction_sees_no_later_words_and_the_backward_direction_no_earlier_ones(tokenizer: Tokenizer):
    encoder = make_encoder(tokenizer)
    batch = make_batch([[2, 5, 8, 7, 9, 10, 3]])
    layout = encoder.create_layout(batch)
    for direction, unseen, seen in ((slice(0, 6), slice(4, 7), slice(0, 4)), (slice(6, 12), slice(0, 3), slice(3, 7))):
        values = encoder.embed(batch, layout).detach().requires_grad_()
        encoder.forward_layers(values, layout).last_hidden_state[3, direction].sum().backward()
        assert values.grad is not None
        assert values.grad[unseen].abs().max() == 0
        assert values.grad[seen, direction].abs().max(1).values.min() > 0


def test_the_pooled_output_has_read_the_whole_sequence_in_both_directions(tokenizer: Tokenizer):
    encoder = make_encoder(tokenizer)
    with torch.no_grad():
        encoded = encoder(make_batch([[2, 5, 3], [2, 9, 8, 7, 6, 5, 3]]))
    assert encoded.pooled is not None
    for sequence, length in enumerate((3, 7)):
        last = encoded.to_padded()[sequence]
        torch.testing.assert_close(encoded.pooled[sequence], torch.cat([last[length - 1, :6], last[0, 6:]]))


def test_an_unknown_word_is_embedded_by_its_spelling(tokenizer: Tokenizer):
    encoder = make_encoder(tokenizer)
    known = make_batch([[2, 5, 6, 3], [2, 10, 3]])
    unknown = make_batch([[2, 1, 6, 3], [2, 1, 3]])  # cat and extraordinary are [UNK], cats is known
    with torch.no_grad():
        expected = encoder(known)
        encoded = encoder(replace(unknown, unknown={1: "cat", 5: "extraordinary"}))
        same = encoder(unknown)
    for layer in range(3):
        torch.testing.assert_close(encoded.to_padded(layer), expected.to_padded(layer))
    assert (same.to_padded(0)[0, 1] == same.to_padded(0)[1, 1]).all()
    assert (encoded.to_padded(0)[0, 1] - encoded.to_padded(0)[1, 1]).abs().max() > 0.01


def test_with_strokes_an_unknown_word_also_has_the_embedding_of_the_unknown_token(tokenizer: Tokenizer):
    encoder = make_encoder(tokenizer, replace(CONFIG, spelling="strokes"))
    batch = replace(make_batch([[2, 1, 1, 3]]), unknown={1: "江", 2: "河"})
    with torch.no_grad():
        first, second = encoder.embed(batch, encoder.create_layout(batch))[1:3, :6]
        (spelled,) = encoder.spelling_encoder(torch.from_numpy(spell_word("江", "strokes", 50))[None])
        torch.testing.assert_close(first, encoder.token_embeddings.weight[1] + spelled)
    assert (first - second).abs().max() > 0.01


def test_without_spelling_unknown_words_are_alike(tokenizer: Tokenizer):
    encoder = make_encoder(tokenizer, replace(CONFIG, spelling="words"))
    batch = make_batch([[2, 1, 3]])
    with torch.no_grad():
        torch.testing.assert_close(
            encoder(replace(batch, unknown={1: "cat"})).last_hidden_state, encoder(batch).last_hidden_state
        )


def test_an_encoder_with_spelling_reads_characters(tokenizer: Tokenizer):
    assert make_encoder(tokenizer).reads_characters
    assert not make_encoder(tokenizer, replace(CONFIG, spelling="words")).reads_characters


def test_strokes_are_added_to_word_embeddings(tokenizer: Tokenizer):
    strokes, words = (make_encoder(tokenizer, replace(CONFIG, spelling=name)) for name in ("strokes", "words"))
    input_ids, token_type_ids = torch.tensor([5, 7]), torch.zeros(2)
    assert list(strokes.embedding_components(input_ids, token_type_ids)) == ["token", "spelling"]
    assert list(words.embedding_components(input_ids, token_type_ids)) == ["token"]
    assert "spelling" not in words.state_dict()
    batch = make_batch([[5, 7]])
    with torch.no_grad():
        total = sum(strokes.embedding_components(input_ids, token_type_ids).values())
        torch.testing.assert_close(strokes.embed(batch, strokes.create_layout(batch))[:, :6], total)


# Characters that share a component: water, hand, tree, speech, metal, heart, mouth, grass.
SHARED_COMPONENTS = (
    "江河湖海洋波",
    "打拍提扫抓拉",
    "林松柏桃梅柳",
    "说话语读谈认",
    "铁钢铜银针钉",
    "情怕忙快恨惊",
    "吃喝叫唱吹咬",
    "花草茶菜苗荷",
)


def train_encoder(spelling: str, seed: int) -> Elmo:
    """Train an ELMo to predict the mark after the characters of each group from their strokes alone."""
    characters = [character for group in SHARED_COMPONENTS for character in group]
    tokens = (*WORDS[:5], *characters, *"abcdefgh")
    tokenizer = Tokenizer.from_backend(KINDS["words"].build(Inventory(tokens), cased=False))
    config = replace(
        CONFIG,
        vocab_size=len(tokens),
        hidden_size=48,
        lstm_size=40,
        spelling=spelling,
        hidden_dropout_prob=0.0,
        filters=((3, 64), (4, 64), (5, 64), (6, 64)),
    )
    generator = torch.Generator().manual_seed(seed)
    encoder = Elmo(config, generator)
    encoder.set_tokenizer(tokenizer)
    with torch.no_grad():
        encoder.token_embeddings.requires_grad_(False).weight.zero_()
    module = BiLmModule(encoder, generator)
    marks = 5 + len(characters) + torch.arange(len(characters)) // 6
    batch = make_batch([[2, word, mark, 3] for word, mark in enumerate(marks.tolist(), 5)])
    batch = replace(batch, positions=torch.arange(len(characters)) * 4 + 1, targets=marks)
    optimizer = torch.optim.Adam([one for one in module.parameters() if one.requires_grad], 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        module(batch, {"bilm": 1 / (2 * len(marks))}).value.backward()
        optimizer.step()
    return encoder.eval()


def mean_similarity(encoder: Elmo, spelling: str) -> float:
    """The mean cosine similarity of the characters of a group, by the vectors of their strokes."""
    table = np.stack(
        [
            spell_word(character, spelling, CONFIG.max_symbols_per_word)
            for group in SHARED_COMPONENTS
            for character in group
        ]
    )
    assert encoder.spelling_encoder is not None
    with torch.no_grad():
        vectors = encoder.spelling_encoder(torch.from_numpy(table))
    vectors = torch.nn.functional.normalize(vectors - vectors.mean(0), dim=1).view(len(SHARED_COMPONENTS), 6, -1)
    similarities = vectors @ vectors.transpose(1, 2)  # (groups, 6, 6)
    return float((similarities.sum() - similarities.diagonal(dim1=1, dim2=2).sum()) / (len(SHARED_COMPONENTS) * 30))


@pytest.mark.parametrize("seed", [0, 1])
def test_characters_that_share_a_component_are_more_similar_than_with_shuffled_strokes(seed: int):
    """Before training and after it: a mark is learned the faster, the more the characters of its group share."""
    config = ElmoConfig.from_preset("small", 10).resized(lstm_size=300, spelling="strokes")
    untrained = Elmo(config, torch.Generator().manual_seed(seed))
    assert mean_similarity(untrained, "strokes") > mean_similarity(untrained, "shuffled-strokes") + 0.1
    trained = {
        spelling: mean_similarity(train_encoder(spelling, seed), spelling)
        for spelling in ("strokes", "shuffled-strokes")
    }
    assert trained["strokes"] > trained["shuffled-strokes"] + 0.1, trained


def test_an_incomplete_config_is_refused():
    config_dict = ENCODERS["elmo"].config_to_dict(CONFIG, [architecture_of(CONFIG)])
    assert config_from_dict(ElmoConfig, config_dict) == CONFIG
    del config_dict["filters"]
    with pytest.raises(SettingsError, match="filters should be a list, but is None"):
        config_from_dict(ElmoConfig, config_dict)
    with pytest.raises(SettingsError, match="filters should be pairs of a width and a number"):
        config_from_dict(ElmoConfig, {**config_dict, "filters": [3, 4]})


def test_invalid_configs_are_refused():
    with pytest.raises(SettingsError, match="choose an even one"):
        replace(CONFIG, hidden_size=13)
    with pytest.raises(SettingsError, match="no size 'huge' of the family 'elmo'"):
        ElmoConfig.from_preset("huge", 10)
    with pytest.raises(SettingsError, match="6 LSTM cells cannot be projected to 6 values"):
        replace(CONFIG, lstm_size=6)
    with pytest.raises(SettingsError, match="no softmax_kind 'quick'; choose one of: adaptive, sampled, full"):
        replace(CONFIG, softmax_kind="quick")
