"""What a package says about a corpus: a corpus folder in, its counts, sources and languages and held-out texts out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertworks.corpus.corpus import Corpus
from bertworks.corpus.manifest import read_manifest
from bertworks.corpus.text_shard import read_text
from bertworks.text.languages import language_of, scripts_of

# Documents of each shard whose language is guessed: a shard has about 4 MB of one source.
_DOCUMENTS_PER_SHARD = 50
# Held-out texts to compare models on: their number, and the sentences of each.
_NUM_TEXTS, _SENTENCES_PER_TEXT = 64, 4


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """A source of a corpus: its file or folder name, and what is left of it after cleaning."""

    name: str
    num_documents: int
    num_characters: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """Counts of a corpus; `languages` are ratios of the characters of a sample, largest first."""

    num_documents: int
    num_sentences: int
    num_characters: int
    num_tokens: int
    num_held_out_documents: int
    num_held_out_tokens: int
    sources: tuple[SourceFacts, ...]
    languages: dict[str, float]


def read_corpus_facts(folder: Path, vocabulary_hash: str) -> CorpusFacts:
    """Read the manifests of a corpus and a sample of its text."""
    keys = read_manifest(folder)["tokens"]  # the same tokens may be there twice, with different word rules
    corpus = Corpus.open(folder, next((key for key in keys if key.startswith(vocabulary_hash)), vocabulary_hash))
    manifest, held_out = corpus.manifest, corpus.tokens_manifest["splits"]["held-out"].values()
    return CorpusFacts(
        num_documents=manifest["documents"],
        num_sentences=manifest["sentences"],
        num_characters=manifest["characters"],
        num_tokens=corpus.tokens_manifest["counts"]["tokens"],
        num_held_out_documents=sum(region["documents"] for region in held_out),
        num_held_out_tokens=sum(region["tokens"] for region in held_out),
        sources=tuple(_sources(manifest)),
        languages=_languages(folder, manifest),
    )


def held_out_texts(folder: Path) -> Iterator[str]:
    """Yield the first sentences of held-out documents on one line each, about equally many of each shard."""
    shards = read_manifest(folder)["shards"]
    texts_per_shard = -(-_NUM_TEXTS // len(shards))
    for shard in shards:
        documents = read_text(folder / shard["file"], shard["sha256"])
        held_out = (document for document, split in documents if split == "held-out")
        for document in islice(held_out, texts_per_shard):
            yield " ".join("".join(document.sentences[:_SENTENCES_PER_TEXT]).split())


def _sources(manifest: dict[str, Any]) -> list[SourceFacts]:
    """Return the sources without their folders, which are those of one machine."""
    facts = []
    for index, source in enumerate(manifest["sources"]):
        shards = [shard for shard in manifest["shards"] if shard["source"] == index]
        documents, characters = (sum(shard[key] for shard in shards) for key in ("documents", "characters"))
        facts.append(SourceFacts(Path(source["path"]).name, documents, characters, source["weight"]))
    return facts


def _languages(folder: Path, manifest: dict[str, Any]) -> dict[str, float]:
    num_characters: Counter[str] = Counter()
    for shard in manifest["shards"]:
        sample: Counter[str] = Counter()
        for document, _ in islice(read_text(folder / shard["file"], shard["sha256"]), _DOCUMENTS_PER_SHARD):
            characters = Counter(document.text)
            language = language_of(document.text, characters, scripts_of(characters))
            sample[language or "none"] += len(document.text)
        for language, count in sample.items():  # the sample stands for the whole shard
            num_characters[language] += round(shard["characters"] * count / sample.total())
    total = num_characters.total()
    return {language: count / total for language, count in sorted(num_characters.items(), key=lambda item: -item[1])}
