"""Special token templates of one text and of pairs, selected by the [CLS] token."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertworks.encoders.families import family_of
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


PIECES = [("▁", -3.0), *((letter, -4.0) for letter in "abcdefgh."), ("▁ab", -1.0)]
WORDPIECES = ["ab", "c", "##d", "h", "a", ".", "[", "]"]


def with_scores(tokens: str) -> list[tuple[str, float]]:
    return [(token, 0.0) for token in tokens.split()]


FAMILY_TOKENIZERS = {
    "xlm-roberta": lambda: transformers.XLMRobertaTokenizer(
        vocab=[*with_scores("<s> <pad> </s> <unk>"), *PIECES, ("<mask>", 0.0)]
    ),
    "camembert": lambda: transformers.CamembertTokenizer(
        vocab=[*with_scores("<s>NOTUSED <pad> </s>NOTUSED <unk> <unk>NOTUSED"), *PIECES, ("<mask>", 0.0)]
    ),
    "deberta-v2": lambda: transformers.DebertaV2Tokenizer(vocab=[*with_scores("[PAD] [CLS] [SEP] [UNK]"), *PIECES]),
    # Its vocabulary contains BERT's, special tokens included.
    "mpnet": lambda: transformers.MPNetTokenizer(
        vocab=number([*"<s> <pad> </s> <unk> [PAD] [UNK] [CLS] [SEP] [MASK]".split(), *WORDPIECES, "<mask>"])
    ),
    "modernbert": lambda: neox_tokenizer(),
    "distilbert": lambda: transformers.DistilBertTokenizer(
        vocab=number([*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), *WORDPIECES])
    ),
}


def neox_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE of GPT-NeoX with BERT's special tokens behind it, and runs of spaces as added tokens."""
    vocabulary = number([*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "Ġh", "Ġab"])
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b"), ("Ġ", "h"), ("Ġ", "ab")]))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|padding|>", "<|endoftext|>"])
    backend.add_tokens([tokenizers.AddedToken(" " * 4, normalized=True), tokenizers.AddedToken("  ", normalized=True)])
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", tokenizers.AddedToken("[MASK]", lstrip=True)])
    backend.add_tokens(["[unused0]"])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **names
    )


def number(tokens: list[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


@pytest.mark.parametrize("has_names", [True, False], ids=["named specials", "usual specials"])
@pytest.mark.parametrize("model_type", FAMILY_TOKENIZERS)
def test_tokenizers_of_families_equal_transformers_before_and_after_saving(
    model_type: str, has_names: bool, tmp_path: Path
):
    theirs = FAMILY_TOKENIZERS[model_type]()
    theirs.save_pretrained(tmp_path / "theirs")
    if not has_names:
        (tmp_path / "theirs" / "tokenizer_config.json").write_text("{}")
    ours = Tokenizer.load(tmp_path / "theirs")
    family = family_of(model_type)
    ours.save(tmp_path / "ours", has_token_types=family.has_token_types)
    reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    roles = ("pad", "unknown", "cls", "sep", "mask")
    names = ("pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
    assert [getattr(ours.specials, role) for role in roles] == [getattr(theirs, name) for name in names]
    mask = theirs.mask_token
    texts_with_masks = (f"ab {mask} cd",), (f"{mask} {mask}.", f"a{mask}")
    for texts in (("ab cd",), ("ab cd.", "h ab"), ("", "a"), ("ab      h  d", "ä e\u0301"), *texts_with_masks):
        encoding = ours.encode(*texts, parse_masks=True)
        for other in (theirs, reloaded):
            expected = other(*texts)
            assert list(encoding.input_ids) == expected["input_ids"]
            assert ("token_type_ids" in expected) == family.has_token_types
            if family.has_token_types:
                assert list(encoding.token_type_ids) == expected["token_type_ids"]
