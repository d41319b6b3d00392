"""The tokenizer: loading, special pieces, pairs, masks, saving, and what the Hugging Face ecosystem makes of it."""

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
PIECES = [*SPECIALS, *ENGLISH, *"我喜欢踢足球，。"]


def write_vocabulary(folder: Path, pieces: list[str], name: str = "vocab.txt") -> Path:
    path = folder / name
    path.write_bytes(("\n".join(pieces) + "\n").encode())
    return path


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(PIECES, cased=False))


@pytest.fixture
def roberta() -> Tokenizer:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, "ab", "Ġab")
    return Tokenizer.from_backend(
        KINDS["byte-bpe"].build(Inventory(pieces, merges=(("a", "b"), ("Ġ", "ab"))), cased=True)
    )


def test_a_pair_of_english_and_chinese_as_bert_reads_it(tmp_path: Path) -> None:
    encoding = Tokenizer.load(write_vocabulary(tmp_path, PIECES)).encode("I like playing soccer", "我喜欢踢足球")
    assert encoding.tokens == (
        *("[CLS]", "i", "like", "play", "##ing", "so", "##cc", "##er", "[SEP]"),
        *("我", "喜", "欢", "踢", "足", "球", "[SEP]"),
    )
    # [CLS] is 2 and [SEP] 3; the English pieces begin at 5 and the Chinese ones at 21.
    assert encoding.input_ids == (2, 5, 6, 7, 8, 9, 10, 11, 3, 21, 22, 23, 24, 25, 26, 3)
    assert encoding.position_ids == tuple(range(16))
    assert encoding.token_type_ids == (0,) * 9 + (1,) * 7
    assert encoding.word_ids == (None, 0, 1, 2, 2, 3, 3, 3, None, 0, 1, 2, 3, 4, 5, None)
    english = [(0, 1), (2, 6), (7, 11), (11, 14), (15, 17), (17, 19), (19, 21)]
    assert encoding.offsets == (None, *english, None, *((place, place + 1) for place in range(6)), None)
    assert len(encoding) == 16


def test_a_single_text_is_all_segment_0(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("I like.")
    assert encoding.tokens == ("[CLS]", "i", "like", ".", "[SEP]")
    assert encoding.token_type_ids == (0,) * 5


def test_an_empty_second_text_still_ends_with_a_separator(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("I", "")
    assert encoding.tokens == ("[CLS]", "i", "[SEP]", "[SEP]")
    assert encoding.token_type_ids == (0, 0, 0, 1)


def test_roberta_puts_two_separators_between_a_pair_and_knows_no_segments(roberta: Tokenizer) -> None:
    encoding = roberta.encode("ab", "ab ab")
    assert encoding.tokens == ("<s>", "ab", "</s>", "</s>", "ab", "Ġab", "</s>")
    assert encoding.token_type_ids == (0,) * 7
    assert encoding.offsets == (None, (0, 2), None, None, (0, 2), (3, 5), None)
    assert encoding.word_ids == (None, 0, None, None, 0, 1, None)
    assert roberta.encode("ab").tokens == ("<s>", "ab", "</s>")


def test_special_pieces_written_in_a_text_are_plain_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("[MASK] [UNK]").tokens[1:-1] == ("[", "mask", "]", "[", "unk", "]")
    flat = tokenizer.encode_sentences(["[MASK]"])
    assert [tokenizer.tokens[number] for number in flat.input_ids] == ["[", "mask", "]"]


def test_masks_are_found_on_request_with_their_offsets(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("I [MASK] so[MASK].", "我[MASK]", parse_masks=True)
    assert encoding.tokens == ("[CLS]", "i", "[MASK]", "so", "[MASK]", ".", "[SEP]", "我", "[MASK]", "[SEP]")
    first = [(0, 1), (2, 8), (9, 11), (11, 17), (17, 18)]
    assert encoding.offsets == (None, *first, None, (0, 1), (1, 7), None)
    assert encoding.word_ids == (None, 0, 1, 2, 3, 4, None, 0, 1, None)
    assert encoding.input_ids[2] == tokenizer.specials.mask == 4


def test_masks_at_both_ends_and_side_by_side(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("[MASK][MASK] I [MASK]", parse_masks=True)
    assert encoding.tokens[1:-1] == ("[MASK]", "[MASK]", "i", "[MASK]")
    assert encoding.offsets[1:-1] == ((0, 6), (6, 12), (13, 14), (15, 21))


def test_other_special_pieces_stay_text_and_so_does_a_small_mask(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("[mask]", parse_masks=True).tokens[1:-1] == ("[", "mask", "]")
    assert tokenizer.encode("[UNK]", parse_masks=True).tokens[1:-1] == ("[", "unk", "]")


def test_the_mask_of_roberta_takes_the_space_before_it(roberta: Tokenizer, tmp_path: Path) -> None:
    encoding = roberta.encode("ab <mask> ab", parse_masks=True)
    assert encoding.tokens == ("<s>", "ab", "<mask>", "Ġab", "</s>")
    assert encoding.offsets == (None, (0, 2), (3, 9), (10, 12), None)
    roberta.save(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("ab <mask> ab").input_ids == list(encoding.input_ids)


def test_lone_surrogates_are_counted_in_both_texts_and_keep_offsets_right(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("\ud800i [MASK]\udfff", "我\ud83d", parse_masks=True)
    assert encoding.num_replaced == 3
    assert encoding.tokens == ("[CLS]", "i", "[MASK]", "[SEP]", "我", "[SEP]")
    assert encoding.offsets == (None, (1, 2), (3, 9), None, (0, 1), None)
    assert tokenizer.encode("i 我😀").num_replaced == 0


def test_specials_are_found_by_what_they_do(tokenizer: Tokenizer, roberta: Tokenizer) -> None:
    assert tokenizer.specials == SpecialTokenIds(pad=0, unknown=1, cls=2, sep=3, mask=4)
    assert roberta.specials == SpecialTokenIds(pad=1, unknown=3, cls=0, sep=2, mask=4)
    assert tokenizer.token_to_id("[MASK]") == 4
    assert tokenizer.token_to_id("nowhere") is None
    assert tokenizer.vocab_size == len(PIECES)


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json", "folder with both", "folder with vocab.txt"])
def test_every_form_of_a_vocabulary_loads_to_the_same(form: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
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
def test_case_survives_saving(cased: bool, tmp_path: Path) -> None:
    before = Tokenizer.from_backend(wordpiece_backend([*PIECES, "I", "Café"], cased))
    before.save(tmp_path)
    after = Tokenizer.load(tmp_path)
    assert (after.cased, after.hash) == (cased, before.hash)
    assert after.encode("I Café").pieces[1:-1] == (("I", "Café") if cased else ("i", "cafe"))


def test_roberta_survives_saving(roberta: Tokenizer, tmp_path: Path) -> None:
    roberta.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.kind, loaded.hash) == ("byte-bpe", roberta.hash)
    assert loaded.encode("ab <s> é", "ab") == roberta.encode("ab <s> é", "ab")


def test_the_hash_knows_pieces_their_order_and_case() -> None:
    hashes = {
        Tokenizer.from_backend(wordpiece_backend(PIECES, cased=False)).hash,
        Tokenizer.from_backend(wordpiece_backend(PIECES, cased=True)).hash,
        Tokenizer.from_backend(wordpiece_backend([*PIECES, "more"], cased=False)).hash,
        Tokenizer.from_backend(wordpiece_backend([*PIECES[:-2], *reversed(PIECES[-2:])], cased=False)).hash,
    }
    assert len(hashes) == 4
    assert all(len(one) == 16 for one in hashes)


TEXTS = ["I like playing soccer.", "like, Café's 'so'", "我喜欢踢足球。", "I 喜欢 soccer，踢 play", "", "unknowable"]


@pytest.mark.parametrize("cased", [False, True])
def test_transformers_reads_our_folder_and_gives_our_ids(cased: bool, tmp_path: Path) -> None:
    ours = Tokenizer.from_backend(wordpiece_backend([*PIECES, "I", "Café"], cased))
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


def test_the_rules_of_a_foreign_tokenizer_json_hold_and_are_saved(tmp_path: Path) -> None:
    content = json.loads(wordpiece_backend([*PIECES, "é", "##a", "a", "##踢"], cased=False).to_str())
    content["normalizer"] |= {"strip_accents": False, "handle_chinese_chars": False}
    content["model"]["max_input_chars_per_word"] = 100
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode("É 我踢").pieces[1:-1] == ("é", "我", "##踢")
    assert loaded.encode("a" * 100).tokens[1:-1] == ("a", *["##a"] * 99)
    assert loaded.encode("a" * 101).tokens[1:-1] == ("[UNK]",)
    loaded.save(tmp_path / "again")
    config = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["strip_accents"] is False
    assert config["tokenize_chinese_chars"] is False
    assert Tokenizer.load(tmp_path / "again").hash == loaded.hash


@pytest.mark.parametrize(
    ("more", "cased"), [([], False), (["<S>", "ℝ"], False), (["London"], True), (["##A"], True), (["Москва"], True)]
)
def test_case_is_guessed_from_a_bare_vocabulary(more: list[str], cased: bool, tmp_path: Path) -> None:
    assert Tokenizer.load(write_vocabulary(tmp_path, [*PIECES, *more])).cased is cased


@pytest.mark.parametrize("lower", [True, False])
def test_a_config_beside_the_vocabulary_decides_about_case(lower: bool, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}), encoding="utf-8")
    assert Tokenizer.load(write_vocabulary(tmp_path, [*PIECES, "London"])).cased is not lower


def test_lines_end_with_either_line_end_and_the_last_may_lack_it(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join([*PIECES, "\u2028", "##\u2028"]).encode())
    assert read_vocabulary(path) == [*PIECES, "\u2028", "##\u2028"]


def test_only_a_newline_ends_a_piece(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"a\rb\nc\x0bd\n\xe2\x80\xa8\n")
    assert read_vocabulary(path) == ["a\rb", "c\x0bd", "\u2028"]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt does not exist; name a vocab\.txt, a tokenizer\.json or"):
        Tokenizer.load(tmp_path / "nowhere.txt")


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"holds neither tokenizer\.json nor vocab\.txt; name a vocabulary or model"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([*SPECIALS, "a", "b", "a"], r"vocab\.txt, line 8: piece 'a' already stands in line 6; remove one"),
        ([*SPECIALS, "", "b"], r"vocab\.txt, line 6: the piece is empty; write one piece a line"),
        (["[PAD]", "[CLS]", "[SEP]", "[MASK]", "a"], r"vocab\.txt: vocabulary of 5 pieces lacks \[UNK\];.*add a line"),
        ([], r"vocab\.txt, line 1: the piece is empty"),
    ],
    ids=["duplicate", "empty line", "no [UNK]", "empty file"],
)
def test_a_damaged_vocabulary_is_refused_with_its_file_and_line(
    pieces: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        Tokenizer.load(write_vocabulary(tmp_path, pieces))


def test_a_vocabulary_that_is_not_utf8_is_refused_with_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"[PAD]\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"vocab\.txt is not UTF-8 text \(invalid start byte at byte 6\)"):
        Tokenizer.load(path)


@pytest.mark.parametrize("content", [b"{}", b"[1, 2]", b"not json", b"\xff\xfe", b"", b'{"model": {"type": "Tree"}}'])
def test_json_that_is_no_tokenizer_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer\.json that `tokenizers` can read: "):
        Tokenizer.load(path)


def wordpiece_json(ids: dict[str, int]) -> str:
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    return json.dumps({"version": "1.0", "model": {**model, "max_input_chars_per_word": 100, "vocab": ids}})


def test_a_tokenizer_json_without_a_needed_special_piece_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(wordpiece_json({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}), encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.json: the vocabulary has no \[MASK\] or <mask> piece"):
        Tokenizer.load(path)


def test_ids_with_a_gap_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    ids = {piece: number for number, piece in enumerate(SPECIALS)} | {"a": 9}
    path.write_text(wordpiece_json(ids), encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.json: the vocabulary has 6 pieces but ids up to 9; number"):
        Tokenizer.load(path)


def test_a_config_that_is_not_json_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(FolderError, match=r"tokenizer_config\.json is not valid JSON"):
        Tokenizer.load(write_vocabulary(tmp_path, PIECES))


def test_a_limit_of_length_in_the_file_is_not_obeyed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    content = json.loads(tokenizer.backend.to_str())
    content["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    loaded = Tokenizer.load(path)
    assert len(loaded.encode("i like so so so")) == 7
    assert loaded.backend.truncation is None
