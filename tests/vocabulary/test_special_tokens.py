"""Where special pieces stand around one text and two, by the name of the summary piece."""

from pathlib import Path

import numpy as np
import pytest
import transformers

from bertworks.sampling.example import assemble
from bertworks.vocabulary.special_tokens import BERT, ROBERTA, XLNET, template_for
from bertworks.vocabulary.tokenizer import SpecialTokenIds, Tokenizer

SPECIALS = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
PIECES = [*((one, 0.0) for one in SPECIALS), ("▁", -3.0), *((letter, -4.0) for letter in "abcdefgh"), ("▁ab", -1.0)]


@pytest.fixture(scope="module")
def theirs() -> transformers.XLNetTokenizer:
    return transformers.XLNetTokenizer(vocab=PIECES)


@pytest.fixture(scope="module")
def ours(theirs: transformers.XLNetTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("xlnet")
    theirs.save_pretrained(folder)
    return Tokenizer.load(folder)


def test_the_summary_piece_tells_the_frame():
    assert [template_for(first) for first in ("[CLS]", "<s>", "<cls>")] == [BERT, ROBERTA, XLNET]
    assert [frame.num_special_tokens(1) for frame in (BERT, ROBERTA, XLNET)] == [2, 2, 2]
    assert [frame.num_special_tokens(2) for frame in (BERT, ROBERTA, XLNET)] == [3, 4, 3]


def test_the_pieces_of_xlnet_are_found_although_it_has_those_of_roberta_too(ours: Tokenizer):
    assert ours.specials == SpecialTokenIds(pad=5, unknown=0, cls=3, sep=4, mask=6)


@pytest.mark.parametrize("texts", [("ab cd",), ("ab cd", "h ab"), ("", "a")])
def test_rows_of_xlnet_are_those_of_transformers(
    ours: Tokenizer, theirs: transformers.XLNetTokenizer, texts: tuple[str, ...]
):
    expected = theirs(*texts, return_token_type_ids=True)
    found = ours.encode(*texts)
    assert list(found.input_ids) == expected["input_ids"]
    assert list(found.token_type_ids) == expected["token_type_ids"]
    assert found.tokens[-2:] == ("<sep>", "<cls>")
    assert found.offsets[-2:] == (None, None)
    assert found.word_ids[-2:] == (None, None)
    cuts = [ours.tokenize(text).input_ids for text in texts]
    ids, segments, starts = ours.build_inputs(*cuts)
    assert ids.tolist() == expected["input_ids"]
    assert segments.tolist() == expected["token_type_ids"]
    for cut, start in zip(cuts, starts, strict=True):
        assert np.array_equal(ids[start : start + len(cut)], cut)
    assert len(ids) == sum(map(len, cuts)) + ours.num_special_tokens(len(texts))


def test_what_was_saved_again_lays_rows_out_the_same_in_transformers(ours: Tokenizer, tmp_path: Path):
    ours.save(tmp_path, padding_side="left")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    rows = again(["ab", "ab ab ab"], padding=True)
    assert rows["input_ids"][0] == [5, 5, *ours.encode("ab").input_ids]
    assert rows["token_type_ids"][1] == list(ours.encode("ab ab ab").token_type_ids)


def test_an_example_without_text_has_its_summary_piece_where_the_frame_says():
    numbers = {"pad": 0, "unknown": 1, "first": 2, "separator": 3, "mask": 4}
    assert assemble([], SpecialTokenIds(**numbers)).input_ids.tolist() == [2]
    last = assemble([], SpecialTokenIds(**numbers, template=XLNET))
    assert (last.input_ids.tolist(), last.token_type_ids.tolist(), last.is_special.tolist()) == ([2], [2], [True])
