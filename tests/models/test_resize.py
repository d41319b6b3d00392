"""Resizing embeddings: the initialization of new tokens, what stays unchanged, and incompatible vocabularies."""

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
TOKENS = [*SPECIALS, "[unused0]", "[unused1]", "car", "##dio", "##gram", "##s", "a", "##a", "##l", "t"]
EMBEDDINGS, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
Make = Callable[..., ModelFolder]


def make_tokenizer(tokens: Sequence[str], cased: bool = False) -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(tokens, cased))


def extended(replaced: Mapping[int, str], *added: str) -> Tokenizer:
    """The tokenizer with tokens replaced by id (unused ones) and added at the end."""
    return make_tokenizer([*(replaced.get(token_id, token) for token_id, token in enumerate(TOKENS)), *added])


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that writes a model: embedding i is (i, 10 i), element i of the bias is 100 i."""

    def write(num_rows: int = len(TOKENS), tokenizer: Tokenizer | None = None, bias: bool = True) -> ModelFolder:
        config = BertConfig(
            vocab_size=num_rows,
            hidden_size=2,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=2,
            max_position_embeddings=8,
        )
        numbers = torch.arange(float(num_rows))
        tensors = {name: torch.ones(shape) for name, shape in shapes_of(ENCODERS["bert"], config).items()}
        tensors[EMBEDDINGS] = torch.stack([numbers, 10 * numbers], 1)
        tensors |= {BIAS: 100 * numbers} if bias else {}
        settings = {**config_to_dict(config, ["BertForMaskedLM"]), "note": "kept"}
        write_folder(tmp_path / "model", settings, tensors, tokenizer or make_tokenizer(TOKENS), {})
        return read_folder(tmp_path / "model")

    return write


def test_a_new_token_is_the_mean_of_its_old_tokens_in_embeddings_and_bias(make: Make):
    resized = resize_token_embeddings(make(), extended({5: "cardiogram"}, "cars"))
    assert resized.new_tokens == (
        NewEmbedding("cardiogram", 5, ("car", "##dio", "##gram")),
        NewEmbedding("cars", 15, ("car", "##s")),
    )
    embeddings, bias = resized.tensors[EMBEDDINGS], resized.tensors[BIAS]
    assert embeddings[5].tolist() == [8.0, 80.0]  # of 7, 8 and 9
    assert embeddings[15].tolist() == [8.5, 85.0]  # of 7 and 10
    assert (bias[5], bias[15]) == (800.0, 850.0)


@pytest.mark.parametrize(
    ("name", "bias"), [("roberta", "lm_head.bias"), ("albert", "predictions.bias"), ("xlnet", "lm_loss.bias")]
)
def test_models_of_other_families_are_resized(name: str, bias: str, tmp_path: Path):
    family = ENCODERS[name]
    config = family.config_from_preset("tiny", len(TOKENS)).resized(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, max_length=8
    )
    tensors = {name: torch.ones(shape) for name, shape in shapes_of(family, config).items()}
    (embeddings,) = family.tensor_names(config)["token_embeddings.weight"]
    tensors[embeddings] = torch.arange(float(len(TOKENS)))[:, None].expand_as(tensors[embeddings]).contiguous()
    tensors[bias] = 100 * torch.arange(float(len(TOKENS)))
    write_folder(tmp_path / "model", family.config_to_dict(config, []), tensors, make_tokenizer(TOKENS), {})
    resized = resize_token_embeddings(read_folder(tmp_path / "model"), extended({5: "cardiogram"}, "cars"))
    assert resized.config["vocab_size"] == 16
    assert resized.tensors[embeddings].shape == (16, config.token_embedding_size)
    assert (resized.tensors[embeddings][[5, 15], 0].tolist(), resized.tensors[bias][[5, 15]].tolist()) == (
        [8.0, 8.5],
        [800.0, 850.0],
    )


def test_all_other_rows_settings_and_tensors_are_unchanged(make: Make):
    folder = make()
    resized = resize_token_embeddings(folder, extended({5: "cardiogram"}, "cars"))
    old = [token_id for token_id in range(len(TOKENS)) if token_id != 5]
    assert resized.tensors[EMBEDDINGS].shape == (16, 2)
    assert resized.tensors[BIAS].shape == (16,)
    assert torch.equal(resized.tensors[EMBEDDINGS][old], folder.tensors[EMBEDDINGS][old])
    assert torch.equal(resized.tensors[BIAS][old], folder.tensors[BIAS][old])
    assert list(resized.tensors) == list(folder.tensors)
    assert len(resized.tensors) == len(folder.tensors)
    others = [name for name in folder.tensors if name not in (EMBEDDINGS, BIAS)]
    assert all(torch.equal(resized.tensors[name], folder.tensors[name]) for name in others)
    assert resized.config == {**folder.config, "vocab_size": 16}
    assert folder.config["vocab_size"] == 15
    assert folder.tensors[EMBEDDINGS][5].tolist() == [5.0, 50.0]


def test_tokens_of_vocab_extend_are_initialized_from_their_subwords(make: Make):
    folder = make()
    extension = extend(folder.tokenizer.backend, ["cardio " * 6 + "cardiogram " * 5 + "cars " * 7], 3)
    resized = resize_token_embeddings(folder, Tokenizer.from_backend(extension.backend))
    assert sorted((new.token, new.id, new.subwords) for new in extension.new_tokens) == sorted(
        (new.token, new.id, new.source_tokens) for new in resized.new_tokens
    )
    assert [new.id for new in resized.new_tokens] == [5, 6, 15]


def test_a_source_token_that_occurs_twice_counts_twice(make: Make):
    resized = resize_token_embeddings(make(), extended({5: "caraal"}))
    assert resized.new_tokens == (NewEmbedding("caraal", 5, ("car", "##a", "##a", "##l")),)
    assert resized.tensors[EMBEDDINGS][5].tolist() == [11.0, 110.0]  # (7 + 12 + 12 + 13) / 4


def test_a_continuation_token_is_tokenized_as_inside_a_word(make: Make):
    resized = resize_token_embeddings(make(), extended({}, "##als"))
    assert resized.new_tokens == (NewEmbedding("##als", 15, ("##a", "##l", "##s")),)  # not "a"
    assert resized.tensors[EMBEDDINGS][15].tolist() == pytest.approx([35 / 3, 350 / 3])  # of 12, 13 and 10


def test_an_unknown_word_is_the_mean_of_its_known_characters(make: Make):
    # "tax" is unknown because of its x. Of the others, t starts a word and ##a continues it.
    resized = resize_token_embeddings(make(), extended({5: "tax", 6: "##xt"}))
    assert resized.new_tokens == (NewEmbedding("tax", 5, ("t", "##a")), NewEmbedding("##xt", 6, ("t",)))
    assert resized.tensors[EMBEDDINGS][5].tolist() == [13.0, 130.0]  # of 14 and 12
    assert resized.tensors[EMBEDDINGS][6].tolist() == [14.0, 140.0]


def test_a_word_without_known_characters_is_the_mean_of_all_tokens(make: Make):
    resized = resize_token_embeddings(make(num_rows=20), extended({}, "京"))
    assert resized.new_tokens == (NewEmbedding("京", 15, ()),)
    assert resized.tensors[EMBEDDINGS][15].tolist() == [7.0, 70.0]  # of 0 to 14: padding rows do not count
    assert resized.tensors[BIAS][15] == 700.0


def test_new_tokens_use_padding_rows_first(make: Make):
    resized = resize_token_embeddings(make(num_rows=18), extended({}, "cars"))
    assert resized.config["vocab_size"] == 18
    assert resized.tensors[EMBEDDINGS][:, 0].tolist() == [*map(float, range(15)), 8.5, 16.0, 17.0]


def test_padded_embeddings_grow_if_the_padding_does_not_suffice(make: Make):
    resized = resize_token_embeddings(make(num_rows=16), extended({}, "cars", "cardio"))
    assert resized.config["vocab_size"] == 17
    assert resized.tensors[EMBEDDINGS][:, 0].tolist() == [*map(float, range(15)), 8.5, 7.5]


def test_an_equal_vocabulary_changes_nothing(make: Make):
    folder = make(num_rows=18)
    resized = resize_token_embeddings(folder, make_tokenizer(TOKENS))
    assert resized.new_tokens == ()
    assert resized.tensors is folder.tensors
    assert resized.config == folder.config


def test_without_mlm_head_only_the_embeddings_are_resized(make: Make):
    resized = resize_token_embeddings(make(bias=False), extended({5: "cars"}))
    assert BIAS not in resized.tensors
    assert resized.tensors[EMBEDDINGS][5].tolist() == [8.5, 85.0]


def test_the_mean_of_fp16_rows_is_computed_in_fp32(make: Make):
    folder = make()
    half = {name: folder.tensors[name].half() for name in folder.tensors}
    half[EMBEDDINGS][7:11] = 40_000.0  # in fp16 the sum of two would be infinite
    embeddings = resize_token_embeddings(replace(folder, tensors=half), extended({5: "cars"})).tensors[EMBEDDINGS]
    assert embeddings.dtype == torch.float16
    assert embeddings[5].tolist() == [40_000.0, 40_000.0]


class RecordedTensors(Mapping[str, torch.Tensor]):
    """Tensors that record which of them were read."""

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


def test_tensors_are_read_on_access_and_others_are_not_copied(make: Make):
    folder = make()
    recorded = RecordedTensors(folder.tensors)
    resized = resize_token_embeddings(replace(folder, tensors=recorded), extended({5: "cars"}))
    assert EMBEDDINGS in resized.tensors
    assert recorded.read == []
    name = "bert.embeddings.position_embeddings.weight"
    assert resized.tensors[name] is recorded.tensors[name]
    assert recorded.read == [name]


def test_a_resized_model_loads_into_an_encoder_and_in_transformers(make: Make, tmp_path: Path):
    new = extended({5: "cardiogram"}, "cars")
    resized = resize_token_embeddings(make(num_rows=15), new)
    config = ENCODERS["bert"].config_from_dict(resized.config)
    encoder = Bert(config)
    assert load_into(encoder, resized.tensors, tensor_names(config)).missing_keys == ()
    tensors = to_hf_names(encoder.state_dict(), tensor_names(config))
    write_folder(tmp_path / "resized", resized.config, tensors, new, {})
    theirs = transformers.BertModel.from_pretrained(tmp_path / "resized")
    assert theirs.config.vocab_size == 16
    assert torch.equal(theirs.embeddings.word_embeddings.weight, resized.tensors[EMBEDDINGS])


INCOMPATIBLE = {
    "a token has another id": (
        make_tokenizer([*TOKENS[:7], "##dio", "car", *TOKENS[9:]]),
        "token 'car', which has id 7 in the model, has id 8 there",
    ),
    "a token is missing": (make_tokenizer(TOKENS[:-1]), "token 't', which has id 14 in the model, is missing there"),
    "a token is replaced": (extended({9: "##graph"}), "token '##gram', which has id 9 in the model, is missing there"),
    "an unused token moved": (
        extended({5: "cars"}, "[unused0]"),
        r"token '\[unused0\]', which has id 5 in the model, has id 15 there",
    ),
    "case": (
        make_tokenizer([*TOKENS, "Cars"], cased=True),
        "it is cased, the model's is uncased",
    ),
    "algorithm": (
        Tokenizer.from_backend(KINDS["words"].build(Inventory((*SPECIALS, "car")), cased=False)),
        "its algorithm is words, the model's is wordpiece",
    ),
}


@pytest.mark.parametrize("case", INCOMPATIBLE)
def test_a_vocabulary_that_is_no_extension_is_refused_with_the_first_difference(make: Make, case: str):
    new, message = INCOMPATIBLE[case]
    folder = make()
    remedy = f"extend the model's with `bertworks vocab extend {folder.path} TEXT --output VOCAB`"
    with pytest.raises(FolderError, match=message) as error:
        resize_token_embeddings(folder, new)
    assert str(error.value).startswith(f"{folder.path}: the vocabulary of the corpus does not extend")
    assert remedy in str(error.value)


def with_setting(tokens: Sequence[str], before: str, after: str) -> Tokenizer:
    """A tokenizer with a setting of its tokenizer.json changed."""
    state = wordpiece_backend(tokens, cased=False).to_str()
    assert before in state
    return Tokenizer.from_backend(type(wordpiece_backend(tokens, cased=False)).from_str(state.replace(before, after)))


def test_another_normalizer_is_refused(make: Make):
    new = with_setting([*TOKENS, "cars"], '"handle_chinese_chars":true', '"handle_chinese_chars":false')
    with pytest.raises(FolderError, match=r"its normalizer is .*'handle_chinese_chars': False"):
        resize_token_embeddings(make(), new)


def test_an_explicit_default_of_the_normalizer_is_no_difference(make: Make):
    new = with_setting([*TOKENS, "cars"], '"strip_accents":null', '"strip_accents":true')
    assert [new_token.token for new_token in resize_token_embeddings(make(), new).new_tokens] == ["cars"]


def test_the_maximal_word_length_may_differ(make: Make):
    new = with_setting([*TOKENS, "cars"], '"max_input_chars_per_word":200', '"max_input_chars_per_word":100')
    assert [new_token.token for new_token in resize_token_embeddings(make(), new).new_tokens] == ["cars"]


def test_other_special_tokens_are_refused(make: Make):
    new = Tokenizer.from_backend(wordpiece_backend([*TOKENS, "[HIDDEN]"], False), {"mask_token": "[HIDDEN]"})
    with pytest.raises(FolderError, match=r"its list of special tokens is .*\[HIDDEN\]"):
        resize_token_embeddings(make(), new)


def test_only_wordpiece_vocabularies_can_be_extended(make: Make):
    kind = KINDS["words"]
    old = Tokenizer.from_backend(kind.build(Inventory((*SPECIALS, "car")), cased=False))
    folder = make(num_rows=6, tokenizer=old)
    assert resize_token_embeddings(folder, old).new_tokens == ()
    new = Tokenizer.from_backend(kind.build(Inventory((*SPECIALS, "car", "cars")), cased=False))
    with pytest.raises(FolderError, match="token 'cars' is new, and only a wordpiece vocabulary can be extended"):
        resize_token_embeddings(folder, new)
