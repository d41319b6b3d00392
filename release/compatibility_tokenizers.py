"""The table of tokenizer formats: the files of a tokenizer in, a row of counted differences out.

Each tokenizer is built by transformers with a small vocabulary, and its files are written in one format. The token ids
of texts and pairs are compared with those of transformers, and so are those of the tokenizer.json that we save.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from transformers.utils import sentencepiece_model_pb2_new as protobuf

from bertworks.vocabulary.tokenizer import Tokenizer
from compatibility_cells import Cell, Row, measure
from compatibility_vocabularies import PAIRS, TEXTS, make_tokenizer, pieces_of

HEADER = ("files", "tokenizer of transformers", "texts", "pairs", "saved here, loaded by transformers")
# What SentencePiece itself wrote; it is not needed here.
RECORDED = Path(__file__).parents[1] / "tests" / "vocabulary" / "fixtures" / "sentencepiece"
MARKED = ("the <e1> quick </e1> fox", "<e1>the film</e1> was <e1> good", "The<e1>dog")
UPPER_MARKED = ("the [E1] quick [/E1] fox", "[E1]the film[/E1] was [e1] good", "The[E1]dog [ E1 ]")
WITH_SPECIALS = ("the film [SEP] was good", "[CLS] the [MASK] film.", "[UNK]")
# The special tokens at the beginning of a SentencePiece file.
SENTENCEPIECE = {
    "AlbertTokenizer": ("albert", "spiece.model", ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
    "XLNetTokenizer": (
        "xlnet", "spiece.model", ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"),
    ),
    "XLMRobertaTokenizer": ("xlm-roberta", "sentencepiece.bpe.model", ("<unk>", "<s>", "</s>")),
    "CamembertTokenizer": ("camembert", "sentencepiece.bpe.model", ("<unk>", "<s>", "</s>")),
    "DebertaV2Tokenizer": ("deberta-v2", "spm.model", ("[PAD]", "[CLS]", "[SEP]", "[UNK]")),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """A row: transformers' class with its settings, what writes the files, and other texts than the usual ones."""

    class_name: str
    write: Callable[[Any, Path], None]
    settings: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Any], Any] = lambda tokenizer: tokenizer
    texts: Sequence[str] = TEXTS
    split_special_tokens: bool = True


def _save_json(tokenizer: Any, folder: Path) -> None:
    tokenizer.save_pretrained(folder)


def _save_vocab_txt(tokenizer: Any, folder: Path) -> None:
    _write_config(folder, {"do_lower_case": tokenizer.do_lower_case})
    vocab = tokenizer.get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.__getitem__)) + "\n", encoding="utf-8")


def _save_added_tokens(tokenizer: Any, folder: Path) -> None:
    """Write the files of a tokenizer of transformers 4 without a tokenizer.json, to which tokens were added."""
    added = {"[E1]": len(tokenizer), "[/E1]": len(tokenizer) + 1}
    _save_vocab_txt(tokenizer, folder)
    (folder / "added_tokens.json").write_text(json.dumps(added), encoding="utf-8")
    tokenizer.add_tokens(list(added))


def _save_merges(tokenizer: Any, folder: Path) -> None:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(tokenizer.get_vocab()), encoding="utf-8")
    merges = [" ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")


def _save_sentencepiece(tokenizer: Any, folder: Path) -> None:
    model_type, file, first = SENTENCEPIECE[type(tokenizer).__name__]
    model: Any = protobuf.ModelProto()  # type: ignore[attr-defined]
    for piece, score in pieces_of(first):
        kind = 2 if "unk" in piece.lower() else 3 if piece in first else 1  # unknown, control, normal
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = 1  # unigram
    (folder / file).write_bytes(model.SerializeToString())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")


def _write_config(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _with_tokens(tokenizer: Any) -> Any:
    tokenizer.add_tokens(["<e1>", "</e1>"])
    return tokenizer


def _with_special_tokens(tokenizer: Any) -> Any:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<e1>", "</e1>"]})
    return tokenizer


TOKENIZER_FILES: dict[str, TokenizerFiles] = {
    "`tokenizer.json`, WordPiece, uncased": TokenizerFiles(class_name="BertTokenizer", write=_save_json),
    "`tokenizer.json`, WordPiece, cased": TokenizerFiles(
        class_name="BertTokenizer", write=_save_json, settings={"do_lower_case": False}
    ),
    "`tokenizer.json`, WordPiece, MPNet's special tokens": TokenizerFiles(
        class_name="MPNetTokenizer", write=_save_json
    ),
    "`tokenizer.json`, byte-level BPE": TokenizerFiles(class_name="RobertaTokenizer", write=_save_json),
    "`tokenizer.json`, BPE": TokenizerFiles(class_name="OpenAIGPTTokenizer", write=_save_json),
    **{
        f"`tokenizer.json`, Unigram, {name}": TokenizerFiles(class_name=class_name, write=_save_json)
        for class_name, (name, _, _) in SENTENCEPIECE.items()
    },
    "`vocab.txt`, uncased": TokenizerFiles(class_name="BertTokenizer", write=_save_vocab_txt),
    "`vocab.txt`, cased": TokenizerFiles(
        class_name="BertTokenizer", write=_save_vocab_txt, settings={"do_lower_case": False}
    ),
    "`vocab.json` and `merges.txt`, byte-level BPE": TokenizerFiles(class_name="RobertaTokenizer", write=_save_merges),
    "`vocab.json` and `merges.txt`, BPE": TokenizerFiles(class_name="OpenAIGPTTokenizer", write=_save_merges),
    **{
        f"`{file}`, Unigram, {name}": TokenizerFiles(class_name=class_name, write=_save_sentencepiece)
        for class_name, (name, file, _) in SENTENCEPIECE.items()
    },
    "`vocab.txt` and `added_tokens.json`": TokenizerFiles(
        class_name="BertTokenizer", write=_save_added_tokens, texts=(*TEXTS, *UPPER_MARKED)
    ),
    "added tokens": TokenizerFiles(
        class_name="BertTokenizer", write=_save_json, prepare=_with_tokens, texts=(*TEXTS, *MARKED)
    ),
    "`additional_special_tokens`": TokenizerFiles(
        class_name="RobertaTokenizer", write=_save_json, prepare=_with_special_tokens, texts=(*TEXTS, *MARKED)
    ),
    "special tokens in a text, `split_special_tokens=False`": TokenizerFiles(
        class_name="BertTokenizer", write=_save_json, texts=WITH_SPECIALS, split_special_tokens=False
    ),
    "special tokens in a text, by default text": TokenizerFiles(
        class_name="BertTokenizer", write=_save_json, texts=WITH_SPECIALS, settings={"split_special_tokens": True}
    ),
}


def measure_sentencepiece_bpe(folder: Path) -> Row:
    """Return the row of SentencePiece files of type BPE: the pieces of texts against those that SentencePiece wrote."""
    recorded = json.loads((RECORDED / "pieces.json").read_text(encoding="utf-8"))

    def pieces(name: str) -> Iterator[str]:
        path = folder / name
        path.mkdir()
        shutil.copy(RECORDED / f"{name}.model", path / "sentencepiece.bpe.model")
        ours = Tokenizer.load(path)
        pairs = zip(recorded["texts"], recorded[name], strict=True)
        different = [t for t, theirs in pairs if [ours.tokens[i] for i in ours.tokenize(t).input_ids] != theirs]
        yield _count(different, len(recorded["texts"]))

    cells = (measure(lambda: [*pieces("bpe"), "with bytes", *pieces("bpe-bytes")]), Cell("–"), Cell("–"))
    return Row("`sentencepiece.bpe.model`, BPE", (Cell("SentencePiece 0.2, recorded"), *cells))


def measure_tokenizer_files(name: str, folder: Path) -> Row:
    """Return the row of a format; the files are written below `folder`."""
    files = TOKENIZER_FILES[name]
    peer = files.prepare(make_tokenizer(files.class_name, **files.settings))
    path, saved = folder / "files", folder / "saved"
    path.mkdir()
    files.write(peer, path)
    has_pairs = files.class_name != "OpenAIGPTTokenizer"  # it has no special tokens, where ours has [CLS] and [SEP]
    cells = [
        measure(lambda: _texts(files, path, peer)),
        measure(lambda: _pairs(files, path, peer)) if has_pairs else Cell("–"),
        measure(lambda: _saved(files, path, saved, peer)),
    ]
    return Row(name, (Cell(f"`{files.class_name}`"), *cells))


def _load(files: TokenizerFiles, path: Path) -> Tokenizer:
    return Tokenizer.load(path, split_special_tokens=files.split_special_tokens)


def _texts(files: TokenizerFiles, path: Path, peer: Any) -> Iterator[str]:
    ours = _load(files, path)
    different = [t for t in files.texts if ours.tokenize(t).input_ids.tolist() != _peer_ids(peer, t, files)]
    yield _count(different, len(files.texts))


def _pairs(files: TokenizerFiles, path: Path, peer: Any) -> Iterator[str]:
    ours = _load(files, path)
    different = [pair for pair in PAIRS if list(ours.encode(*pair).input_ids) != peer(*pair)["input_ids"]]
    yield _count(different, len(PAIRS))


def _saved(files: TokenizerFiles, path: Path, saved: Path, peer: Any) -> Iterator[str]:
    _load(files, path).save(saved)
    loaded = transformers.AutoTokenizer.from_pretrained(saved)
    different = [t for t in files.texts if _peer_ids(loaded, t, files) != _peer_ids(peer, t, files)]
    yield _count(different, len(files.texts))


def _peer_ids(peer: Any, text: str, files: TokenizerFiles) -> list[int]:
    settings = {key: files.settings[key] for key in ("split_special_tokens",) if key in files.settings}
    ids: list[int] = peer(text, add_special_tokens=False, **settings)["input_ids"]
    return ids


def _count(different: Sequence[Any], total: int) -> str:
    if not different:
        return f"0 of {total} differ"
    raise ValueError(f"{len(different)} of {total} differ, first of all {different[0]!r}")
