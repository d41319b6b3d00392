"""Added tokens are one token wherever a text has them, as in transformers; special tokens in a text are text."""

from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from bertworks.vocabulary.added_tokens import AddedTokensModel
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDPIECES = [*SPECIALS, "the", "cat", "sat", "in", "e", "##1", "##s", "1", "new", "york", "<", ">", "[", "]", "co",
              "##vid", "##19", "sep", "我", "."]  # fmt: skip
BYTES = [*KINDS["byte-bpe"].specials.order, *(chr(code) for code in range(33, 127)), "Ġ", "Ġc", "at", "Ġcat"]
MERGES = (("Ġ", "c"), ("a", "t"), ("Ġc", "at"))
TEXTS = [
    "the <e1>cat</e1> sat",
    "the <E1> cat",
    "<e1><e1> the",
    "The [E2] cat [e2]sat",
    "in New York.",
    "in new york. covid19 covid",
    "我<e1>我",
    "",
    "<e1>",
    "the cats sat",
]

Added = Callable[[transformers.PreTrainedTokenizerBase], None]


def add_markers(theirs: transformers.PreTrainedTokenizerBase) -> None:
    theirs.add_tokens(["<e1>", "</e1>", "New York"])
    theirs.add_tokens(transformers.AddedToken("covid", single_word=True))
    theirs.add_special_tokens({"additional_special_tokens": ["[E2]"]})


def wordpiece(cased: bool) -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(WORDPIECES, cased))


def byte_bpe() -> Tokenizer:
    return Tokenizer.from_backend(KINDS["byte-bpe"].build(Inventory(tuple(BYTES), MERGES), True))


def add(tokenizer: Tokenizer, folder: Path) -> transformers.PreTrainedTokenizerBase:
    """Save a tokenizer with the added tokens in `folder`, as transformers does."""
    tokenizer.save(folder / "before")
    theirs = transformers.AutoTokenizer.from_pretrained(folder / "before")
    add_markers(theirs)
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("kind", ["uncased", "cased", "byte-bpe"])
def test_added_tokens_are_found_as_in_transformers(kind: str, tmp_path: Path) -> None:
    theirs = add(byte_bpe() if kind == "byte-bpe" else wordpiece(kind == "cased"), tmp_path)
    ours = Tokenizer.load(tmp_path)
    for text in TEXTS:
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"], text
    marker = ours.token_to_id("<e1>")
    assert ours.encode("<e1>the").input_ids[1] == marker


def test_offsets_and_word_starts_include_added_tokens(tmp_path: Path) -> None:
    add(wordpiece(False), tmp_path)
    tokens = Tokenizer.load(tmp_path).tokenize("the <e1>cats</e1>")
    assert [tuple(span) for span in tokens.offsets.tolist()] == [(0, 3), (4, 8), (8, 11), (11, 12), (12, 17)]
    assert tokens.word_starts.tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
def test_a_token_that_takes_the_space_beside_it_takes_no_ideograph(side: str, tmp_path: Path) -> None:
    wordpiece(False).save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.add_tokens(transformers.AddedToken("<e1>", **{side: True}))
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("我<e1>我").tokens == ("[CLS]", "我", "<e1>", "我", "[SEP]")
    for text in ("我<e1>我", "the <e1> cat", "我 <e1> 我", "<e1>"):
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"], text


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe"])
def test_many_sentences_have_the_tokens_of_each(kind: str, tmp_path: Path) -> None:
    add(byte_bpe() if kind == "byte-bpe" else wordpiece(False), tmp_path)
    ours = Tokenizer.load(tmp_path)
    flat = ours.encode_sentences([text.strip() for text in TEXTS])
    expected = [ours.tokenize(text) for text in TEXTS]
    assert flat.input_ids.tolist() == [int(token) for tokens in expected for token in tokens.input_ids]
    assert flat.word_starts.tolist() == [bool(start) for tokens in expected for start in tokens.word_starts]
    assert flat.sentence_ends.tolist()[-1] == len(flat.input_ids)


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe"])
def test_special_tokens_in_a_text_are_text_unless_they_are_asked_for(kind: str, tmp_path: Path) -> None:
    theirs = add(byte_bpe() if kind == "byte-bpe" else wordpiece(False), tmp_path)
    text = f"the {theirs.sep_token} cat {theirs.mask_token}<e1>"
    separator, marker = theirs.sep_token_id, theirs.convert_tokens_to_ids("<e1>")
    default = Tokenizer.load(tmp_path).encode(text).input_ids
    assert separator not in default[:-1]
    assert marker in default
    as_transformers = Tokenizer.load(tmp_path, split_special_tokens=False).encode(text).input_ids
    assert list(as_transformers) == theirs(text)["input_ids"]
    assert separator in as_transformers[:-1]


def test_the_hash_depends_on_the_added_tokens(tmp_path: Path) -> None:
    plain = wordpiece(False)
    add(plain, tmp_path)
    assert Tokenizer.load(tmp_path / "before").hash == plain.hash
    added = Tokenizer.load(tmp_path)
    assert added.hash != plain.hash
    added.save(tmp_path / "saved")
    saved = Tokenizer.load(tmp_path / "saved")
    assert saved.hash == added.hash
    assert saved.encode("the <e1> cat [E2]") == added.encode("the <e1> cat [E2]")


def test_a_vocabulary_without_added_tokens_is_not_searched() -> None:
    assert not isinstance(wordpiece(False)._model, AddedTokensModel)


def test_special_tokens_among_the_pieces_of_a_unigram_model_are_text_too(tmp_path: Path) -> None:
    """SentencePiece does not find its control symbols in text; `tokenizers` does."""
    first = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    letters = [(letter, -4.0) for letter in "<>seplcm/a"]
    theirs = transformers.XLNetTokenizer(vocab=[*((token, 0.0) for token in first), ("▁", -3.0), *letters])
    theirs.save_pretrained(tmp_path)
    text = "a<sep>a</s><eop>"
    separator, end = first.index("<sep>"), first.index("<eop>")
    ours = Tokenizer.load(tmp_path)
    assert separator not in ours.tokenize(text).input_ids
    assert first.index("</s>") not in ours.tokenize(text).input_ids
    assert end in ours.tokenize(text).input_ids
    as_transformers = Tokenizer.load(tmp_path, split_special_tokens=False)
    assert list(as_transformers.encode(text).input_ids) == theirs(text)["input_ids"]
    assert ours.encode("a a", "a").input_ids == as_transformers.encode("a a", "a").input_ids
