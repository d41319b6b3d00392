"""Special token templates of one text and of pairs, selected by the [CLS] token."""

from pathlib import Path

import numpy as np
import pytest
import transformers

from bertworks.sampling.example import assemble
from bertworks.vocabulary.special_tokens import BERT, ROBERTA, XLNET, template_for
from bertworks.vocabulary.tokenizer import SpecialTokenIds, Tokenizer

SPECIALS = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
TOKENS = [*((token, 0.0) for token in SPECIALS), ("▁", -3.0), *((letter, -4.0) for letter in "abcdefgh"), ("▁ab", -1.0)]


@pytest.fixture(scope="module")
def theirs() -> transformers.XLNetTokenizer:
    return transformers.XLNetTokenizer(vocab=TOKENS)


@pytest.fixture(scope="module")
def ours(theirs: transformers.XLNetTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("xlnet")
    theirs.save_pretrained(folder)
    return Tokenizer.load(folder)


def test_the_cls_token_selects_the_template():
    assert [template_for(cls_token) for cls_token in ("[CLS]", "<s>", "<cls>")] == [BERT, ROBERTA, XLNET]
    assert [template.num_special_tokens(1) for template in (BERT, ROBERTA, XLNET)] == [2, 2, 2]
    assert [template.num_special_tokens(2) for template in (BERT, ROBERTA, XLNET)] == [3, 4, 3]


def test_xlnet_special_tokens_are_preferred_over_those_of_roberta(ours: Tokenizer):
    assert ours.specials == SpecialTokenIds(pad=5, unknown=0, cls=3, sep=4, mask=6)


@pytest.mark.parametrize("texts", [("ab cd",), ("ab cd", "h ab"), ("", "a")])
def test_xlnet_sequences_equal_transformers(
    ours: Tokenizer, theirs: transformers.XLNetTokenizer, texts: tuple[str, ...]
):
    expected = theirs(*texts, return_token_type_ids=True)
    encoding = ours.encode(*texts)
    assert list(encoding.input_ids) == expected["input_ids"]
    assert list(encoding.token_type_ids) == expected["token_type_ids"]
    assert encoding.tokens[-2:] == ("<sep>", "<cls>")
    assert encoding.offsets[-2:] == (None, None)
    assert encoding.word_ids[-2:] == (None, None)
    token_ids = [ours.tokenize(text).input_ids for text in texts]
    input_ids, token_type_ids, starts = ours.build_inputs(*token_ids)
    assert input_ids.tolist() == expected["input_ids"]
    assert token_type_ids.tolist() == expected["token_type_ids"]
    for part, start in zip(token_ids, starts, strict=True):
        assert np.array_equal(input_ids[start : start + len(part)], part)
    assert len(input_ids) == sum(map(len, token_ids)) + ours.num_special_tokens(len(texts))


def test_a_saved_xlnet_tokenizer_gives_the_same_sequences_in_transformers(ours: Tokenizer, tmp_path: Path):
    ours.save(tmp_path, padding_side="left")
    reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    batch = reloaded(["ab", "ab ab ab"], padding=True)
    assert batch["input_ids"][0] == [5, 5, *ours.encode("ab").input_ids]
    assert batch["token_type_ids"][1] == list(ours.encode("ab ab ab").token_type_ids)


def test_an_example_without_text_has_cls_where_the_template_puts_it():
    ids = {"pad": 0, "unknown": 1, "cls": 2, "sep": 3, "mask": 4}
    assert assemble([], SpecialTokenIds(**ids)).input_ids.tolist() == [2]
    example = assemble([], SpecialTokenIds(**ids, template=XLNET))
    assert (example.input_ids.tolist(), example.token_type_ids.tolist(), example.is_special.tolist()) == (
        [2],
        [2],
        [True],
    )
