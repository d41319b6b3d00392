"""The tokenizer: loading, special tokens, pairs, masks, saving, and parity with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from transformers import AutoTokenizer

from bertworks.errors import FolderError, InputError
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.files import read_vocabulary
from bertworks.vocabulary.tokenizer import SpecialTokenIds, Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENGLISH = ["i", "like", "play", "##ing", "so", "##cc", "##er", "cafe", "mask", "[", "]", ".", ",", "'", "s", "unk"]
TOKENS = [*SPECIALS, *ENGLISH, *"我喜欢踢足球，。"]


def write_vocabulary(folder: Path, tokens: list[str], name: str = "vocab.txt") -> Path:
    path = folder / name
    path.write_bytes(("\n".join(tokens) + "\n").encode())
    return path


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))


@pytest.fixture
def roberta() -> Tokenizer:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, "ab", "Ġab")
    return Tokenizer.from_backend(
        KINDS["byte-bpe"].build(Inventory(tokens, merges=(("a", "b"), ("Ġ", "ab"))), cased=True)
    )


def test_an_english_and_chinese_pair_is_encoded_as_in_bert(tmp_path: Path) -> None:
    encoding = Tokenizer.load(write_vocabulary(tmp_path, TOKENS)).encode("I like playing soccer", "我喜欢踢足球")
    assert encoding.tokens == (
        *("[CLS]", "i", "like", "play", "##ing", "so", "##cc", "##er", "[SEP]"),
        *("我", "喜", "欢", "踢", "足", "球", "[SEP]"),
    )
    # [CLS] is 2 and [SEP] 3; the English tokens begin at 5 and the Chinese ones at 21.
    assert encoding.input_ids == (2, 5, 6, 7, 8, 9, 10, 11, 3, 21, 22, 23, 24, 25, 26, 3)
    assert encoding.position_ids == tuple(range(16))
    assert encoding.token_type_ids == (0,) * 9 + (1,) * 7
    assert encoding.word_ids == (None, 0, 1, 2, 2, 3, 3, 3, None, 0, 1, 2, 3, 4, 5, None)
    english = [(0, 1), (2, 6), (7, 11), (11, 14), (15, 17), (17, 19), (19, 21)]
    assert encoding.offsets == (None, *english, None, *((index, index + 1) for index in range(6)), None)
    assert len(encoding) == 16


def test_to_dict_has_the_fields_of_transformers(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("I like").to_dict() == {
        "tokens": ("[CLS]", "i", "like", "[SEP]"),
        "input_ids": (2, 5, 6, 3),
        "position_ids": (0, 1, 2, 3),
        "token_type_ids": (0, 0, 0, 0),
        "attention_mask": (1, 1, 1, 1),
        "offsets": (None, (0, 1), (2, 6), None),
    }


def test_a_single_text_has_token_type_0(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("I like.")
    assert encoding.tokens == ("[CLS]", "i", "like", ".", "[SEP]")
    assert encoding.token_type_ids == (0,) * 5


def test_an_empty_second_text_still_ends_with_a_separator(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("I", "")
    assert encoding.tokens == ("[CLS]", "i", "[SEP]", "[SEP]")
    assert encoding.token_type_ids == (0, 0, 0, 1)


def test_roberta_encodes_a_pair_with_two_separators_and_token_type_0(roberta: Tokenizer) -> None:
    encoding = roberta.encode("ab", "ab ab")
    assert encoding.tokens == ("<s>", "ab", "</s>", "</s>", "ab", "Ġab", "</s>")
    assert encoding.token_type_ids == (0,) * 7
    assert encoding.offsets == (None, (0, 2), None, None, (0, 2), (3, 5), None)
    assert encoding.word_ids == (None, 0, None, None, 0, 1, None)
    assert roberta.encode("ab").tokens == ("<s>", "ab", "</s>")


def test_special_tokens_in_encoded_text_are_ordinary_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("[MASK] [UNK]").tokens[1:-1] == ("[", "mask", "]", "[", "unk", "]")
    flat = tokenizer.encode_sentences(["[MASK]"])
    assert [tokenizer.tokens[token_id] for token_id in flat.input_ids] == ["[", "mask", "]"]


def test_parse_masks_finds_mask_tokens_with_offsets(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("I [MASK] so[MASK].", "我[MASK]", parse_masks=True)
    assert encoding.tokens == ("[CLS]", "i", "[MASK]", "so", "[MASK]", ".", "[SEP]", "我", "[MASK]", "[SEP]")
    first = [(0, 1), (2, 8), (9, 11), (11, 17), (17, 18)]
    assert encoding.offsets == (None, *first, None, (0, 1), (1, 7), None)
    assert encoding.word_ids == (None, 0, 1, 2, 3, 4, None, 0, 1, None)
    assert encoding.input_ids[2] == tokenizer.specials.mask == 4


def test_parse_masks_at_both_ends_and_adjacent(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("[MASK][MASK] I [MASK]", parse_masks=True)
    assert encoding.tokens[1:-1] == ("[MASK]", "[MASK]", "i", "[MASK]")
    assert encoding.offsets[1:-1] == ((0, 6), (6, 12), (13, 14), (15, 21))


def test_parse_masks_ignores_other_special_tokens_and_lower_case(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("[mask]", parse_masks=True).tokens[1:-1] == ("[", "mask", "]")
    assert tokenizer.encode("[UNK]", parse_masks=True).tokens[1:-1] == ("[", "unk", "]")


def test_the_mask_of_roberta_includes_the_space_before_it(roberta: Tokenizer, tmp_path: Path) -> None:
    encoding = roberta.encode("ab <mask> ab", parse_masks=True)
    assert encoding.tokens == ("<s>", "ab", "<mask>", "Ġab", "</s>")
    assert encoding.offsets == (None, (0, 2), (3, 9), (10, 12), None)
    roberta.save(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("ab <mask> ab").input_ids == list(encoding.input_ids)


def test_lone_surrogates_are_counted_in_both_texts_and_offsets_stay_correct(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("\ud800i [MASK]\udfff", "我\ud83d", parse_masks=True)
    assert encoding.num_replaced == 3
    assert encoding.tokens == ("[CLS]", "i", "[MASK]", "[SEP]", "我", "[SEP]")
    assert encoding.offsets == (None, (1, 2), (3, 9), None, (0, 1), None)
    assert tokenizer.encode("i 我😀").num_replaced == 0


def test_special_token_ids_are_found_by_role(tokenizer: Tokenizer, roberta: Tokenizer) -> None:
    assert tokenizer.specials == SpecialTokenIds(pad=0, unknown=1, cls=2, sep=3, mask=4)
    assert roberta.specials == SpecialTokenIds(pad=1, unknown=3, cls=0, sep=2, mask=4)
    assert tokenizer.token_to_id("[MASK]") == 4
    assert tokenizer.token_to_id("nowhere") is None
    assert tokenizer.vocab_size == len(TOKENS)


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json", "folder with both", "folder with vocab.txt"])
def test_every_form_of_a_vocabulary_loads_the_same_tokenizer(form: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    if form == "folder with vocab.txt":
        (tmp_path / "tokenizer.json").unlink()
    loaded = Tokenizer.load(tmp_path / form if "." in form and "folder" not in form else str(tmp_path))
    assert loaded.tokens == tokenizer.tokens
    assert loaded.hash == tokenizer.hash
    assert loaded.specials == tokenizer.specials
    text = "I like playing soccer, Café. 我喜欢踢足球。[MASK]"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.encode_sentences([text]).input_ids.tolist() == tokenizer.encode_sentences([text]).input_ids.tolist()


@pytest.mark.parametrize("cased", [False, True])
def test_case_round_trips(cased: bool, tmp_path: Path) -> None:
    original = Tokenizer.from_backend(wordpiece_backend([*TOKENS, "I", "Café"], cased))
    original.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.cased, loaded.hash) == (cased, original.hash)
    assert loaded.encode("I Café").tokens[1:-1] == (("I", "Café") if cased else ("i", "cafe"))


def test_a_byte_bpe_tokenizer_round_trips(roberta: Tokenizer, tmp_path: Path) -> None:
    roberta.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.kind, loaded.hash) == ("byte-bpe", roberta.hash)
    assert loaded.encode("ab <s> é", "ab") == roberta.encode("ab <s> é", "ab")


def test_the_hash_depends_on_tokens_their_order_and_case() -> None:
    hashes = {
        Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False)).hash,
        Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=True)).hash,
        Tokenizer.from_backend(wordpiece_backend([*TOKENS, "more"], cased=False)).hash,
        Tokenizer.from_backend(wordpiece_backend([*TOKENS[:-2], *reversed(TOKENS[-2:])], cased=False)).hash,
    }
    assert len(hashes) == 4
    assert all(len(digest) == 16 for digest in hashes)


TEXTS = ["I like playing soccer.", "like, Café's 'so'", "我喜欢踢足球。", "I 喜欢 soccer，踢 play", "", "unknowable"]


@pytest.mark.parametrize("cased", [False, True])
def test_transformers_loads_our_folder_with_equal_ids(cased: bool, tmp_path: Path) -> None:
    ours = Tokenizer.from_backend(wordpiece_backend([*TOKENS, "I", "Café"], cased))
    ours.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs(text).input_ids == list(ours.encode(text).input_ids)
    pair = ours.encode(TEXTS[0], TEXTS[2])
    assert theirs(TEXTS[0], TEXTS[2]).input_ids == list(pair.input_ids)
    assert theirs(TEXTS[0], TEXTS[2], return_token_type_ids=True).token_type_ids == list(pair.token_type_ids)
    masked = ours.encode("I [MASK] soccer", parse_masks=True)
    assert theirs("I [MASK] soccer").input_ids == list(masked.input_ids)
    assert theirs.mask_token_id == ours.specials.mask


def test_settings_of_a_foreign_tokenizer_json_are_used_and_saved(tmp_path: Path) -> None:
    content = json.loads(wordpiece_backend([*TOKENS, "é", "##a", "a", "##踢"], cased=False).to_str())
    content["normalizer"] |= {"strip_accents": False, "handle_chinese_chars": False}
    content["model"]["max_input_chars_per_word"] = 100
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode("É 我踢").tokens[1:-1] == ("é", "我", "##踢")
    assert loaded.encode("a" * 100).tokens[1:-1] == ("a", *["##a"] * 99)
    assert loaded.encode("a" * 101).tokens[1:-1] == ("[UNK]",)
    loaded.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["strip_accents"] is False
    assert config["tokenize_chinese_chars"] is False
    assert Tokenizer.load(tmp_path / "saved").hash == loaded.hash


@pytest.mark.parametrize(
    ("extra_tokens", "cased"),
    [([], False), (["<S>", "ℝ"], False), (["London"], True), (["##A"], True), (["Москва"], True)],
)
def test_case_is_guessed_from_a_bare_vocabulary(extra_tokens: list[str], cased: bool, tmp_path: Path) -> None:
    assert Tokenizer.load(write_vocabulary(tmp_path, [*TOKENS, *extra_tokens])).cased is cased


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_do_lower_case_of_tokenizer_config_sets_the_case(do_lower_case: bool, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": do_lower_case}), encoding="utf-8")
    assert Tokenizer.load(write_vocabulary(tmp_path, [*TOKENS, "London"])).cased is not do_lower_case


def test_vocab_txt_accepts_crlf_and_a_missing_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join([*TOKENS, "\u2028", "##\u2028"]).encode())
    assert read_vocabulary(path) == [*TOKENS, "\u2028", "##\u2028"]


def test_only_a_newline_ends_a_token(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"a\rb\nc\x0bd\n\xe2\x80\xa8\n")
    assert read_vocabulary(path) == ["a\rb", "c\x0bd", "\u2028"]


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt does not exist; give a vocab\.txt, a tokenizer\.json or"):
        Tokenizer.load(tmp_path / "nowhere.txt")


def test_a_folder_without_a_vocabulary_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        FolderError, match=r"contains none of tokenizer\.json, vocab\.txt, .*; give a vocabulary or model"
    ):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([*SPECIALS, "a", "b", "a"], r"vocab\.txt, line 8: token 'a' is already on line 6; remove one"),
        ([*SPECIALS, "", "b"], r"vocab\.txt, line 6: the token is empty; write one token per line"),
        (["[PAD]", "[CLS]", "[SEP]", "[MASK]", "a"], r"vocab\.txt: vocabulary of 5 tokens lacks \[UNK\];.*add a line"),
        ([], r"vocab\.txt, line 1: the token is empty"),
    ],
    ids=["duplicate", "empty line", "no [UNK]", "empty file"],
)
def test_a_malformed_vocabulary_is_rejected_with_file_and_line(tokens: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        Tokenizer.load(write_vocabulary(tmp_path, tokens))


def test_a_vocabulary_that_is_not_utf8_is_rejected_with_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"[PAD]\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"vocab\.txt is not UTF-8 text \(invalid start byte at byte 6\)"):
        Tokenizer.load(path)


@pytest.mark.parametrize("content", [b"{}", b"[1, 2]", b"not json", b"\xff\xfe", b"", b'{"model": {"type": "Tree"}}'])
def test_json_that_is_no_tokenizer_is_rejected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer\.json that `tokenizers` can read: "):
        Tokenizer.load(path)


def wordpiece_json(token_to_id: dict[str, int]) -> str:
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    return json.dumps({"version": "1.0", "model": {**model, "max_input_chars_per_word": 100, "vocab": token_to_id}})


def test_a_tokenizer_json_without_a_special_token_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(wordpiece_json({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[MASK]": 3}), encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.json: the vocabulary has no \[SEP\] or <sep> or </s> token"):
        Tokenizer.load(path)


def test_ids_with_a_gap_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    token_to_id = {token: token_id for token_id, token in enumerate(SPECIALS)} | {"a": 9}
    path.write_text(wordpiece_json(token_to_id), encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.json: the vocabulary has 6 tokens but ids up to 9; number"):
        Tokenizer.load(path)


def test_a_tokenizer_config_that_is_not_json_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(FolderError, match=r"tokenizer_config\.json is not valid JSON"):
        Tokenizer.load(write_vocabulary(tmp_path, TOKENS))


def test_truncation_settings_of_tokenizer_json_are_ignored(tokenizer: Tokenizer, tmp_path: Path) -> None:
    content = json.loads(tokenizer.backend.to_str())
    content["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    loaded = Tokenizer.load(path)
    assert len(loaded.encode("i like so so so")) == 7
    assert loaded.backend.truncation is None


def test_an_id_of_two_billion_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    token_to_id = {token: token_id for token_id, token in enumerate(SPECIALS)} | {"a": 2**31}
    path.write_text(wordpiece_json(token_to_id), encoding="utf-8")
    with pytest.raises(InputError, match="6 tokens but ids up to 2147483648"):
        Tokenizer.load(path)


def test_a_regular_expression_that_takes_too_many_steps_is_one_sentence(roberta: Tokenizer, tmp_path: Path) -> None:
    content = json.loads(roberta.backend.to_str())
    content["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+(b+)+(c+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path)
    with pytest.raises(InputError, match="the rules of the tokenizer fail") as error:
        loaded.encode("a" * 60 + "b" * 60 + "c" * 60 + "!")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="the rules of the tokenizer fail"):
        loaded.encode_sentences(["a" * 60 + "b" * 60 + "c" * 60 + "!"])


def test_a_folder_in_place_of_a_vocabulary_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").mkdir()
    with pytest.raises(InputError, match=r"vocab\.txt cannot be read: it is a folder; give a file"):
        read_vocabulary(tmp_path / "vocab.txt")


def _change_rules(change: str) -> tokenizers.Tokenizer:
    backend = wordpiece_backend([*TOKENS, "é", "##x"], cased=False)
    backend.model.max_input_chars_per_word = 100
    match change:
        case "white space":
            backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        case "normal form":
            backend.normalizer = tokenizers.normalizers.Lowercase()
        case "no cleaning":
            backend.normalizer = tokenizers.normalizers.BertNormalizer(clean_text=False)
        case "longer words":
            backend.model.max_input_chars_per_word = 200
    return backend


@pytest.mark.parametrize("change", ["", "white space", "normal form", "no cleaning", "longer words"])
def test_transformers_has_our_tokens_of_a_saved_wordpiece_with_any_rules(change: str, tmp_path: Path) -> None:
    """Its BertTokenizer is built from the vocabulary alone: it is named only if the rules are its own."""
    tokenizer = Tokenizer.from_backend(_change_rules(change))
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    peer = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("I like é.", "so\u0007so", "i" + "x" * 150, "s,s"):
        assert peer(text)["input_ids"] == list(tokenizer.encode(text).input_ids), text
    assert (type(peer).__name__ == "BertTokenizer") == (change == "")
    assert peer("i", "s")["token_type_ids"] == list(tokenizer.encode("i", "s").token_type_ids)
