"""Folders of text: a vocabulary, a corpus or a folder of embeddings in, its FolderInfo out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertworks.corpus.manifest import MANIFEST, read_manifest, read_tokens_manifest
from bertworks.embeddings.formats import PROGRESS, read_metadata, sidecar_path, with_current_names
from bertworks.errors import FolderError
from bertworks.folder_info.kind import FINISHED, UNFINISHED, FolderInfo, known, read_object, total_bytes
from bertworks.vocabulary.vocabulary_files import find_vocabulary

WORK_FOLDER = ".work"


def is_vocabulary(folder: Path) -> bool:
    return find_vocabulary(folder) is not None


def describe_vocabulary(folder: Path) -> FolderInfo:
    """Load the tokenizer, so that a damaged one is noticed."""
    from bertworks.vocabulary.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder)
    report = read_object(folder / "report.json", "the report of a vocabulary")
    facts = {
        "algorithm": tokenizer.kind,
        "tokens": tokenizer.vocab_size,
        "cased": tokenizer.cased,
        "hash": tokenizer.hash,
        "tokens per word": report.get("tokens_per_word"),
        "words with [UNK]": report.get("unknown_ratio"),
    }
    return FolderInfo(
        folder=folder,
        kind="vocabulary",
        command="bertworks vocab" if "evaluation_text" in report else "",
        version=str(report.get("made_by", "")).removeprefix("bertworks "),
        facts=known(facts),
        next_command=f"bertworks prepare TEXT --vocab {folder} --output corpus",
    )


def is_corpus(folder: Path) -> bool:
    return (folder / WORK_FOLDER).is_dir() or ((folder / MANIFEST).is_file() and (folder / "text").is_dir())


def describe_corpus(folder: Path) -> FolderInfo:
    """Read the manifests and look for every shard; the hashes of the shards are for `bertworks verify`."""
    if not (folder / MANIFEST).is_file():
        return FolderInfo(
            folder=folder,
            kind="corpus",
            command="bertworks prepare",
            facts={"units read": len(list((folder / WORK_FOLDER).glob("[0-9]*[0-9].json")))},
            state=UNFINISHED,
            next_command=f"bertworks prepare TEXT --vocab VOCABULARY --output {folder}",
        )
    manifest = read_manifest(folder)
    tokens = {key: read_tokens_manifest(folder, key, manifest) for key in manifest["tokens"]}
    files = [shard["file"] for shard in manifest["shards"]]
    files += [f"tokens/{key}/{shard['file']}" for key, entry in tokens.items() for shard in entry["shards"]]
    for name in files:
        if not (folder / name).is_file():
            raise FolderError(f"{folder} lacks {name}, which its {MANIFEST} lists; copy or prepare it again")
    facts = {
        "documents": manifest["documents"],
        "sentences": manifest["sentences"],
        "characters": manifest["characters"],
        "languages": manifest.get("languages"),
        "sources": [source["path"] for source in manifest["sources"]],
        "vocabularies": {key: _describe_tokens(entry) for key, entry in tokens.items()},
        "disk space": total_bytes(folder),
    }
    return FolderInfo(
        folder=folder,
        kind="corpus",
        command="bertworks prepare",
        version=str(manifest.get("made_by", "")).removeprefix("bertworks "),
        facts=known(facts),
        next_command=f"bertworks plan --data {folder} --budget 2h",
    )


def _describe_tokens(entry: dict[str, Any]) -> str:
    """Return the vocabulary of a corpus in words: its kind, its size, and the length of the corpus in its tokens."""
    num_tokens = entry["counts"].get("tokens", 0)
    return f"{entry.get('kind', 'unknown')} of {entry['size']:,}, {num_tokens:,} tokens of text"


def is_vectors(path: Path) -> bool:
    """Whether a path is what `embed` writes: a folder, a file with its metadata beside it, or the parts of a run."""
    if path.is_file():
        return _vectors_metadata(path) is not None
    return (path / "vectors.npy").is_file() and ((path / MANIFEST).is_file() or (path / PROGRESS).is_file())


def _vectors_metadata(path: Path) -> dict[str, Any] | None:
    return read_metadata(path) if path.is_dir() or sidecar_path(path).is_file() else None


def describe_vectors(path: Path) -> FolderInfo:
    """Read the metadata beside or among the vectors; without it, a run of `embed` has not finished."""
    metadata = _vectors_metadata(path)
    is_part = metadata is None
    if metadata is None:
        metadata = with_current_names(read_object(path / PROGRESS, "the progress of a run"))
    facts = {
        "level": metadata.get("unit"),
        "texts": metadata.get("texts"),
        "vectors": metadata.get("rows"),
        "vector size": metadata.get("vector_size"),
        "model fingerprint": metadata.get("model"),
        "layers used": metadata.get("layers"),
        "pooling": metadata.get("pooling"),
    }
    if is_part:
        next_command = "bertworks embed MODEL TEXTS --output OUTPUT"
    elif path.is_file():
        next_command = f'bertworks search MODEL TEXTS "QUERY" --vectors {path}'
    else:
        next_command = f"python -c \"import numpy; print(numpy.load('{path / 'vectors.npy'}').shape)\""
    return FolderInfo(
        folder=path,
        kind="embeddings",
        command="bertworks embed",
        facts=known(facts),
        state=UNFINISHED if is_part else FINISHED,
        next_command=next_command,
    )
