"""Growing a model: which row each new piece gets, what stays as it is, and which vocabularies are refused."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from bertworks.encoders.bert import Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.encoders.families import ENCODERS, shapes_of
from bertworks.errors import FolderError
from bertworks.models.folder import ModelFolder, read_folder, write_folder
from bertworks.models.resize import NewEmbedding, resize_token_embeddings
from bertworks.models.tensor_names import load_into, to_hf_names
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.extension import extend
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# ids                     5            6            7      8        9         10     11   12     13    14
PIECES = [*SPECIALS, "[unused0]", "[unused1]", "car", "##dio", "##gram", "##s", "a", "##a", "##l", "t"]
TABLE, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
Make = Callable[..., ModelFolder]


def tokenizer_of(pieces: Sequence[str], cased: bool = False) -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(pieces, cased))


def taking(slots: Mapping[int, str], *more: str) -> Tokenizer:
    """The tokenizer with some slots taken, by id, and more pieces at the end."""
    return tokenizer_of([*(slots.get(number, piece) for number, piece in enumerate(PIECES)), *more])


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that writes a model: row i of the piece table is (i, 10 i), element i of the bias 100 i."""

    def write(num_rows: int = len(PIECES), tokenizer: Tokenizer | None = None, bias: bool = True) -> ModelFolder:
        sizes = BertConfig(
            vocab_size=num_rows,
            hidden_size=2,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=2,
            max_position_embeddings=8,
        )
        numbers = torch.arange(float(num_rows))
        tensors = {name: torch.ones(shape) for name, shape in shapes_of(ENCODERS["bert"], sizes).items()}
        tensors[TABLE] = torch.stack([numbers, 10 * numbers], 1)
        tensors |= {BIAS: 100 * numbers} if bias else {}
        config = {**config_to_dict(sizes, ["BertForMaskedLM"]), "note": "kept"}
        write_folder(tmp_path / "model", config, tensors, tokenizer or tokenizer_of(PIECES), {})
        return read_folder(tmp_path / "model")

    return write


def test_a_new_piece_is_the_mean_of_the_pieces_it_replaces_in_table_and_bias(make: Make):
    found = resize_token_embeddings(make(), taking({5: "cardiogram"}, "cars"))
    assert found.new_tokens == (
        NewEmbedding("cardiogram", 5, ("car", "##dio", "##gram")),
        NewEmbedding("cars", 15, ("car", "##s")),
    )
    table, bias = found.tensors[TABLE], found.tensors[BIAS]
    assert table[5].tolist() == [8.0, 80.0]  # of 7, 8 and 9
    assert table[15].tolist() == [8.5, 85.0]  # of 7 and 10
    assert (bias[5], bias[15]) == (800.0, 850.0)


@pytest.mark.parametrize(
    ("family", "bias"), [("roberta", "lm_head.bias"), ("albert", "predictions.bias"), ("xlnet", "lm_loss.bias")]
)
def test_relatives_grow_in_their_narrow_table_and_in_the_bias_of_their_head(family: str, bias: str, tmp_path: Path):
    own = ENCODERS[family]
    sizes = own.config_from_preset("tiny", len(PIECES)).resized(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, max_length=8
    )
    tensors = {name: torch.ones(shape) for name, shape in shapes_of(own, sizes).items()}
    (table,) = own.tensor_names(sizes)["pieces.weight"]
    tensors[table] = torch.arange(float(len(PIECES)))[:, None].expand_as(tensors[table]).contiguous()
    tensors[bias] = 100 * torch.arange(float(len(PIECES)))
    write_folder(tmp_path / "model", own.config_to_dict(sizes, []), tensors, tokenizer_of(PIECES), {})
    found = resize_token_embeddings(read_folder(tmp_path / "model"), taking({5: "cardiogram"}, "cars"))
    assert found.config["vocab_size"] == 16
    assert found.tensors[table].shape == (16, sizes.token_embedding_size)
    assert (found.tensors[table][[5, 15], 0].tolist(), found.tensors[bias][[5, 15]].tolist()) == (
        [8.0, 8.5],
        [800.0, 850.0],
    )


def test_all_other_rows_settings_and_tensors_stay_as_they_are(make: Make):
    folder = make()
    found = resize_token_embeddings(folder, taking({5: "cardiogram"}, "cars"))
    old = [number for number in range(len(PIECES)) if number != 5]
    assert found.tensors[TABLE].shape == (16, 2)
    assert found.tensors[BIAS].shape == (16,)
    assert torch.equal(found.tensors[TABLE][old], folder.tensors[TABLE][old])
    assert torch.equal(found.tensors[BIAS][old], folder.tensors[BIAS][old])
    assert list(found.tensors) == list(folder.tensors)
    assert len(found.tensors) == len(folder.tensors)
    others = [name for name in folder.tensors if name not in (TABLE, BIAS)]
    assert all(torch.equal(found.tensors[name], folder.tensors[name]) for name in others)
    assert found.config == {**folder.config, "vocab_size": 16}
    assert folder.config["vocab_size"] == 15
    assert folder.tensors[TABLE][5].tolist() == [5.0, 50.0]


def test_what_vocab_extend_adds_begins_as_the_mean_of_what_it_says_was_there(make: Make):
    folder = make()
    extension = extend(folder.tokenizer.backend, ["cardio " * 6 + "cardiogram " * 5 + "cars " * 7], 3)
    found = resize_token_embeddings(folder, Tokenizer.from_backend(extension.backend))
    assert sorted((one.token, one.id, one.subwords) for one in extension.new_tokens) == sorted(
        (one.token, one.id, one.source_tokens) for one in found.new_tokens
    )
    assert [one.id for one in found.new_tokens] == [5, 6, 15]


def test_a_piece_that_occurs_twice_counts_twice(make: Make):
    found = resize_token_embeddings(make(), taking({5: "caraal"}))
    assert found.new_tokens == (NewEmbedding("caraal", 5, ("car", "##a", "##a", "##l")),)
    assert found.tensors[TABLE][5].tolist() == [11.0, 110.0]  # (7 + 12 + 12 + 13) / 4


def test_a_continuing_piece_is_cut_as_it_stands_inside_a_word(make: Make):
    found = resize_token_embeddings(make(), taking({}, "##als"))
    assert found.new_tokens == (NewEmbedding("##als", 15, ("##a", "##l", "##s")),)  # not the "a" of a word's beginning
    assert found.tensors[TABLE][15].tolist() == pytest.approx([35 / 3, 350 / 3])  # of 12, 13 and 10


def test_an_unknown_word_is_the_mean_of_the_characters_that_are_known(make: Make):
    # "tax" is unknown for its x. Of the others, t begins a word and ##a continues one.
    found = resize_token_embeddings(make(), taking({5: "tax", 6: "##xt"}))
    assert found.new_tokens == (NewEmbedding("tax", 5, ("t", "##a")), NewEmbedding("##xt", 6, ("t",)))
    assert found.tensors[TABLE][5].tolist() == [13.0, 130.0]  # of 14 and 12
    assert found.tensors[TABLE][6].tolist() == [14.0, 140.0]


def test_a_word_of_which_nothing_is_known_is_the_mean_of_all_pieces(make: Make):
    found = resize_token_embeddings(make(num_rows=20), taking({}, "京"))
    assert found.new_tokens == (NewEmbedding("京", 15, ()),)
    assert found.tensors[TABLE][15].tolist() == [7.0, 70.0]  # of 0 to 14: padding is no piece
    assert found.tensors[BIAS][15] == 700.0


def test_new_pieces_use_the_padding_of_a_table_first_and_the_rest_of_it_stays(make: Make):
    found = resize_token_embeddings(make(num_rows=18), taking({}, "cars"))
    assert found.config["vocab_size"] == 18
    assert found.tensors[TABLE][:, 0].tolist() == [*map(float, range(15)), 8.5, 16.0, 17.0]


def test_a_padded_table_grows_where_its_padding_does_not_suffice(make: Make):
    found = resize_token_embeddings(make(num_rows=16), taking({}, "cars", "cardio"))
    assert found.config["vocab_size"] == 17
    assert found.tensors[TABLE][:, 0].tolist() == [*map(float, range(15)), 8.5, 7.5]


def test_an_equal_vocabulary_changes_nothing(make: Make):
    folder = make(num_rows=18)
    found = resize_token_embeddings(folder, tokenizer_of(PIECES))
    assert found.new_tokens == ()
    assert found.tensors is folder.tensors
    assert found.config == folder.config


def test_a_model_without_the_masked_head_grows_its_table_alone(make: Make):
    found = resize_token_embeddings(make(bias=False), taking({5: "cars"}))
    assert BIAS not in found.tensors
    assert found.tensors[TABLE][5].tolist() == [8.5, 85.0]


def test_the_mean_of_half_precision_rows_is_computed_in_full(make: Make):
    folder = make()
    half = {name: folder.tensors[name].half() for name in folder.tensors}
    half[TABLE][7:11] = 40_000.0  # in half precision the sum of two would be infinite
    table = resize_token_embeddings(replace(folder, tensors=half), taking({5: "cars"})).tensors[TABLE]
    assert table.dtype == torch.float16
    assert table[5].tolist() == [40_000.0, 40_000.0]


class Watched(Mapping[str, torch.Tensor]):
    """Tensors that remember which of them were read."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = {name: tensors[name] for name in tensors}
        self.read: list[str] = []

    def __getitem__(self, name: str) -> torch.Tensor:
        self.read.append(name)
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def test_nothing_is_read_before_it_is_asked_for_and_what_does_not_grow_is_not_copied(make: Make):
    folder = make()
    watched = Watched(folder.tensors)
    found = resize_token_embeddings(replace(folder, tensors=watched), taking({5: "cars"}))
    assert TABLE in found.tensors
    assert watched.read == []
    name = "bert.embeddings.position_embeddings.weight"
    assert found.tensors[name] is watched.tensors[name]
    assert watched.read == [name]


def test_a_grown_model_fills_an_encoder_and_loads_in_transformers(make: Make, tmp_path: Path):
    new = taking({5: "cardiogram"}, "cars")
    found = resize_token_embeddings(make(num_rows=15), new)
    sizes = ENCODERS["bert"].config_from_dict(found.config)
    encoder = Bert(sizes)
    assert load_into(encoder, found.tensors, tensor_names(sizes)).missing_keys == ()
    write_folder(tmp_path / "grown", found.config, to_hf_names(encoder.state_dict(), tensor_names(sizes)), new, {})
    theirs = transformers.BertModel.from_pretrained(tmp_path / "grown")
    assert theirs.config.vocab_size == 16
    assert torch.equal(theirs.embeddings.word_embeddings.weight, found.tensors[TABLE])


REFUSED = {
    "a piece has another id": (
        tokenizer_of([*PIECES[:7], "##dio", "car", *PIECES[9:]]),
        "piece 'car', which has id 7 in the model, has id 8 there",
    ),
    "a piece is missing": (tokenizer_of(PIECES[:-1]), "piece 't', which has id 14 in the model, is missing there"),
    "a piece is replaced": (taking({9: "##graph"}), "piece '##gram', which has id 9 in the model, is missing there"),
    "a slot moved": (
        taking({5: "cars"}, "[unused0]"),
        r"piece '\[unused0\]', which has id 5 in the model, has id 15 there",
    ),
    "case": (
        tokenizer_of([*PIECES, "Cars"], cased=True),
        "it tells capital letters from small ones, the model's makes all letters small",
    ),
    "kind": (
        Tokenizer.from_backend(KINDS["words"].build(Inventory((*SPECIALS, "car")), cased=False)),
        "it is of kind words, the model's of kind wordpiece",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_extend_the_vocabulary_is_refused_with_the_first_difference(make: Make, case: str):
    new, said = REFUSED[case]
    folder = make()
    way_out = f"extend the model's with `bertworks vocab extend {folder.path} TEXT --out VOCAB`"
    with pytest.raises(FolderError, match=said) as error:
        resize_token_embeddings(folder, new)
    assert str(error.value).startswith(f"{folder.path}: the vocabulary of the corpus does not extend")
    assert way_out in str(error.value)


def rewritten(pieces: Sequence[str], before: str, after: str) -> Tokenizer:
    """A tokenizer with a setting of its tokenizer.json changed."""
    state = wordpiece_backend(pieces, cased=False).to_str()
    assert before in state
    return Tokenizer.from_backend(type(wordpiece_backend(pieces, cased=False)).from_str(state.replace(before, after)))


def test_another_normaliser_is_refused(make: Make):
    new = rewritten([*PIECES, "cars"], '"handle_chinese_chars":true', '"handle_chinese_chars":false')
    with pytest.raises(FolderError, match=r"its normaliser is .*'handle_chinese_chars': False"):
        resize_token_embeddings(make(), new)


def test_the_same_normaliser_written_out_is_the_same(make: Make):
    new = rewritten([*PIECES, "cars"], '"strip_accents":null', '"strip_accents":true')
    assert [one.token for one in resize_token_embeddings(make(), new).new_tokens] == ["cars"]


def test_the_length_from_which_words_are_given_up_may_differ(make: Make):
    new = rewritten([*PIECES, "cars"], '"max_input_chars_per_word":200', '"max_input_chars_per_word":100')
    assert [one.token for one in resize_token_embeddings(make(), new).new_tokens] == ["cars"]


def test_other_special_pieces_are_refused(make: Make):
    new = Tokenizer.from_backend(wordpiece_backend([*PIECES, "[HIDDEN]"], False), {"mask_token": "[HIDDEN]"})
    with pytest.raises(FolderError, match=r"its row of special pieces is .*\[HIDDEN\]"):
        resize_token_embeddings(make(), new)


def test_only_wordpiece_vocabularies_grow(make: Make):
    kind = KINDS["words"]
    old = Tokenizer.from_backend(kind.build(Inventory((*SPECIALS, "car")), cased=False))
    folder = make(num_rows=6, tokenizer=old)
    assert resize_token_embeddings(folder, old).new_tokens == ()
    new = Tokenizer.from_backend(kind.build(Inventory((*SPECIALS, "car", "cars")), cased=False))
    with pytest.raises(FolderError, match="piece 'cars' is new, and only a wordpiece vocabulary can be extended"):
        resize_token_embeddings(folder, new)
