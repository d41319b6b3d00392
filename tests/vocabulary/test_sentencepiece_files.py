"""SentencePiece files give the tokens of transformers in the layout of each family; other files are refused."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Regex, normalizers
from transformers.utils import sentencepiece_model_pb2_new as protobuf

from bertworks.errors import InputError
from bertworks.vocabulary.surface_forms import decode_tokens, surface_form
from bertworks.vocabulary.tokenizer import Tokenizer

FIXTURES = Path(__file__).parent / "fixtures" / "sentencepiece"
LETTERS = [(letter, -5.0) for letter in "abcdehtéT"]
WORDS = [("▁", -3.0), *LETTERS, ("▁the", -1.5), ("▁cat", -2.0), ("▁T", -4.0), ("he", -2.5)]
FIRST = {
    "albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "xlnet": ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"),
    "xlm-roberta": ("<unk>", "<s>", "</s>"),
    "camembert": ("<unk>", "<s>", "</s>"),
    "deberta-v2": ("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
}
FILES = {"albert": "spiece.model", "xlnet": "spiece.model", "deberta-v2": "spm.model"}
TEXTS = ["the cat", "The cat", "thé  cat ", "  THÉ CAT", "``the'' cat", "", "the xyz\tcat", "我the 猫，cat", "ｔhe cat"]


def pieces_of(family: str) -> list[tuple[str, float]]:
    return [*((token, 0.0) for token in FIRST[family]), *WORDS]


def write_model(folder: Path, family: str, model_type: int = 1) -> Path:
    """Write the SentencePiece file of a family, and its model_type in config.json."""
    model = protobuf.ModelProto()
    for piece, score in pieces_of(family):
        kind = 2 if "unk" in piece.lower() else 3 if piece in FIRST[family] else 1
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = model_type
    path = folder / FILES.get(family, "sentencepiece.bpe.model")
    path.write_bytes(model.SerializeToString())
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return path


def write_settings(folder: Path, settings: dict[str, Any] | None, name: str | None) -> None:
    """Write a tokenizer_config.json, with a class if there is one; none at all without settings and class."""
    path = folder / "tokenizer_config.json"
    path.unlink(missing_ok=True)
    if settings is not None or name is not None:
        path.write_text(json.dumps({**(settings or {}), **({"tokenizer_class": name} if name else {})}))


def character_map(old: str, new: str) -> bytes:
    """Return SentencePiece's table for one character: the size of a trie, the trie, and the text that it points to.

    The trie is a double array: the child of a node for a byte is at node ^ offset ^ byte and has the byte as its label.
    Bit 8 marks a node with a value, which is at node ^ offset.
    """
    units, node = [0] * 256 * (len(old.encode()) + 2), 0
    for depth, byte in enumerate(old.encode(), 1):
        offset = node ^ (256 * depth)
        units[node] |= offset << 10
        node ^= offset ^ byte
        units[node] = byte
    offset = node ^ (len(units) - 256)
    units[node] |= offset << 10 | 1 << 8
    units[node ^ offset] = 1 << 31
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + new.encode() + b"\0"


def peer_of(family: str, **settings: Any) -> transformers.PreTrainedTokenizerBase:
    classes = {
        "albert": transformers.AlbertTokenizer,
        "xlnet": transformers.XLNetTokenizer,
        "xlm-roberta": transformers.XLMRobertaTokenizer,
        "camembert": transformers.CamembertTokenizer,
        "deberta-v2": transformers.DebertaV2Tokenizer,
    }
    first: list[tuple[str, float]] = []
    vocab = pieces_of(family)
    if family == "xlm-roberta":
        first, vocab = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")], [*vocab[3:], ("<mask>", 0.0)]
    if family == "camembert":
        first = [(token, 0.0) for token in ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")]
        first, vocab = [*first, ("<unk>NOTUSED", -100.0)], [*vocab[1:], ("<mask>", 0.0)]
    return classes[family](vocab=[*first, *vocab], **settings)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("albert", {}),
        ("albert", {"do_lower_case": False, "keep_accents": True}),
        ("albert", {"add_prefix_space": False}),
        ("xlnet", {}),
        ("xlnet", {"add_prefix_space": False}),
        ("xlm-roberta", {}),
        ("xlm-roberta", {"add_prefix_space": False}),
        ("camembert", {}),
        ("deberta-v2", {}),
        ("deberta-v2", {"add_prefix_space": False}),
        ("deberta-v2", {"do_lower_case": True}),
        ("deberta-v2", {"split_by_punct": True}),
    ],
)
def test_a_file_gives_the_tokens_of_transformers(family: str, settings: dict[str, Any], tmp_path: Path):
    write_model(tmp_path, family)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = Tokenizer.load(tmp_path), peer_of(family, **settings)
    for text in TEXTS:
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"], text
    assert list(ours.encode("the cat", "cat").input_ids) == theirs("the cat", "cat")["input_ids"]
    assert ours.vocab_size == len(theirs)
    roles = ("pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
    assert ours.specials.ids == tuple(getattr(theirs, role) for role in roles)


# What a tokenizer.json was written with, and what tokenizer_config.json says beside it: None for no such file.
STORED = [{}, {"do_lower_case": True}, {"do_lower_case": False}, {"add_prefix_space": False}, {"keep_accents": True}]
STATED = [None, {}, *STORED[1:], {"add_prefix_space": True}, {"split_by_punct": True}]


@pytest.mark.parametrize("source", ["tokenizer_config.json", "config.json", "model_type"])
@pytest.mark.parametrize("family", FIRST)
def test_settings_of_a_class_count_before_tokenizer_json(family: str, source: str, tmp_path: Path):
    name = type(peer_of(family)).__name__
    config = {"model_type": family, **({"tokenizer_class": name} if source == "config.json" else {})}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for stored in STORED:
        peer = peer_of(family, _spm_precompiled_charsmap=character_map("ｔ", "t"), **stored)
        peer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
        for settings in STATED:
            write_settings(tmp_path, settings, name if source == "tokenizer_config.json" else None)
            theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
            for text in TEXTS:
                assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"], (stored, settings, text)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_a_tokenizer_json_counts_alone_with_a_generic_class(name: str, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    peer_of("albert", do_lower_case=False).backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_settings(tmp_path, {"do_lower_case": True, "add_prefix_space": False}, name)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    for text in TEXTS:
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"], text


def test_the_table_of_a_tokenizer_json_is_found_among_other_normalizers(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    backend = peer_of("xlm-roberta").backend_tokenizer
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.Precompiled(character_map("ｔ", "t")), spaces])
    backend.save(str(tmp_path / "tokenizer.json"))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    assert ours.encode("ｔhe").tokens == ("<s>", "▁the", "</s>")
    for text in TEXTS:
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"], text


@pytest.mark.parametrize("family", FIRST)
def test_a_saved_tokenizer_gives_the_same_tokens(family: str, tmp_path: Path):
    write_model(tmp_path, family)
    ours = Tokenizer.load(tmp_path)
    ours.save(tmp_path / "saved")
    saved = Tokenizer.load(tmp_path / "saved")
    assert [saved.encode(text) for text in TEXTS] == [ours.encode(text) for text in TEXTS]


def test_without_a_config_the_layout_follows_from_the_pieces(tmp_path: Path):
    for family in ("albert", "xlnet", "xlm-roberta", "deberta-v2"):
        folder = tmp_path / family
        folder.mkdir()
        path = write_model(folder, family)
        expected = Tokenizer.load(folder).encode("the cat", "cat")
        (folder / "config.json").unlink()
        assert Tokenizer.load(path).encode("the cat", "cat") == expected


def test_the_layout_is_that_of_the_class_of_the_tokenizer_whatever_the_model_is(tmp_path: Path):
    path = write_model(tmp_path, "albert")
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "AlbertTokenizer"}')
    theirs, ours = peer_of("albert"), Tokenizer.load(tmp_path)
    for text in TEXTS:
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"], text
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    with pytest.raises(InputError, match=rf"{path.name} belongs to a T5Tokenizer of transformers"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["bpe", "bpe-bytes"])
def test_a_bpe_model_has_the_pieces_of_sentencepiece(name: str, tmp_path: Path):
    expected = json.loads((FIXTURES / "pieces.json").read_text(encoding="utf-8"))
    shutil.copy(FIXTURES / f"{name}.model", tmp_path / "sentencepiece.bpe.model")
    ours = Tokenizer.load(tmp_path)
    ours.save(tmp_path / "saved")
    for tokenizer in (ours, Tokenizer.load(tmp_path / "saved")):
        for text, pieces in zip(expected["texts"], expected[name], strict=True):
            tokens = [tokenizer.tokens[token_id] for token_id in tokenizer.tokenize(text).input_ids]
            assert tokens == pieces, text
    assert ours.encode("the fox").tokens[0] == "<s>"
    text = "the film 北京"
    tokens = ours.tokenize(text)
    assert "".join(text[start:end] for start, end in tokens.offsets.tolist()) == text.replace(" ", "")
    assert "".join(surface_form(ours, token_id).text for token_id in tokens.input_ids.tolist()) == "thefilm北京"
    assert decode_tokens(ours, tokens.input_ids.tolist()) == text


def test_bytes_are_decoded_to_their_characters(tmp_path: Path):
    shutil.copy(FIXTURES / "bpe-bytes.model", tmp_path / "sentencepiece.bpe.model")
    tokenizer = Tokenizer.load(tmp_path)
    input_ids = tokenizer.tokenize("я 🙂 film").input_ids.tolist()
    assert tokenizer.tokens[input_ids[1]] == "<0xD1>"
    assert decode_tokens(tokenizer, input_ids) == "я 🙂 film"


def test_what_is_no_unigram_or_bpe_model_is_refused(tmp_path: Path):
    path = write_model(tmp_path, "albert", model_type=3)
    with pytest.raises(InputError, match=r"spiece\.model is no unigram or BPE model"):
        Tokenizer.load(path)
    path.write_bytes(b"\x12\x7fabc")
    with pytest.raises(InputError, match="is not a SentencePiece model, or it is damaged"):
        Tokenizer.load(path)
