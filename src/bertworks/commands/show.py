"""Inspect a corpus, a vocabulary or a text: examples, documents, tokens or sentences out, for display."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bertworks.corpus.corpus import Corpus
from bertworks.corpus.manifest import MANIFEST, read_manifest
from bertworks.corpus.text_shard import SplitDocument, read_text
from bertworks.errors import FolderError
from bertworks.sampling.loading import Loader
from bertworks.sampling.masking import MaskSettings
from bertworks.sampling.order import ExampleOrder
from bertworks.text.cleaning import CleanSettings, clean
from bertworks.text.document import Counts, Document
from bertworks.text.sources import ReadSettings, TextSource, blocks, read
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowRequest:
    """Which examples of a corpus to show."""

    folder: Path
    objective: str = "mlm-nsp"
    split: str = "train"
    max_length: int = 128
    epoch: int = 0
    num_examples: int = 5
    seed: int = 0
    whole_words: bool = False
    vocabulary: str | None = None
    max_ngram: int = 1


@dataclass(frozen=True, slots=True)
class ExampleView:
    """One training example: the tokens of the model input, and position -> original token for masked ones."""

    tokens: tuple[str, ...]
    token_type_ids: tuple[int, ...]
    masked_tokens: dict[int, str]
    label: str | None


def kind_of_folder(path: Path) -> str:
    """Return what `path` is: "corpus", "vocabulary" or "text"."""
    if (path / MANIFEST).is_file():
        return "corpus"
    names = ("tokenizer.json", "vocab.txt")
    # Released vocabularies are files such as bert-base-chinese-vocab.txt.
    if any((path / name).is_file() for name in names) or path.name.endswith(names):
        return "vocabulary"
    if (path / ".work").is_dir():
        raise FolderError(f"{path} is an unfinished corpus; run its `bertworks prepare` command again")
    return "text"


def examples(request: ShowRequest) -> Iterator[ExampleView]:
    """Yield the first examples of an epoch, exactly as a training run with this seed samples them."""
    from bertworks.objectives.registry import objective_of  # imports torch, which the other views do without

    objective = objective_of(request.objective)
    corpus = Corpus.open(request.folder, request.vocabulary)
    tokenizer = corpus.tokenizer
    sampler = objective.sampler(corpus.split(request.split), request.max_length, tokenizer.specials)
    mask_settings = MaskSettings(whole_words=request.whole_words, max_ngram=request.max_ngram)
    loader = Loader(
        sampler, objective.corruption(tokenizer, mask_settings), ExampleOrder(request.seed, "show", request.split)
    )
    for example, masked in islice(loader.epoch(request.epoch), request.num_examples):
        yield ExampleView(
            tokens=tuple(tokenizer.tokens[number] for number in masked.input_ids),
            token_type_ids=tuple(example.token_type_ids.tolist()),
            masked_tokens={
                position: tokenizer.tokens[target]
                for position, target in zip(masked.positions.tolist(), masked.targets.tolist(), strict=True)
            },
            label=None if example.label is None else objective.label_names[example.label],
        )


def documents(folder: Path) -> Iterator[SplitDocument]:
    """Yield the documents of a corpus in the order of its sources."""
    for shard in read_manifest(folder)["shards"]:
        yield from read_text(folder / shard["file"], shard["sha256"])


def sentences(source: str) -> Iterator[Document]:
    """Yield the documents of a raw source, cleaned and split as `prepare` would."""
    counts = Counts()
    for block in blocks([TextSource(source)], ReadSettings()):
        for raw_document in read(block, counts):
            document = clean(raw_document, CleanSettings(min_characters=1), counts)
            if document is not None:
                yield document


def vocabulary(path: Path) -> Tokenizer:
    """Load the vocabulary in `path`."""
    return Tokenizer.load(path)
