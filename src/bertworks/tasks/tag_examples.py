"""What the task `tag` reads and returns: documents with tags, their features, and predictions with entities.

W words, C labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.datasets.conll import Sentence, split_words
from bertworks.display.entities import entities_html
from bertworks.errors import InputError, show_value
from bertworks.tasks.contract import Features
from bertworks.tasks.tag_documents import Ints, SentenceContext
from bertworks.tasks.tag_labels import EntitySpan


@dataclass(frozen=True, slots=True)
class TagExample:
    """Sentences, usually a whole document, with their tags, None if unknown, and the context around them."""

    id: str
    context: SentenceContext

    @classmethod
    def from_text(cls, text: str, name: str = "1", location: str = "the text") -> TagExample:
        """Return the example of a plain text, split into words as files of spans are: at white space and punctuation,
        an ideograph or punctuation mark being a word of its own."""
        words, offsets = split_words(text)
        sentence = Sentence(words=words, tags=None, text=text, offsets=offsets, document=0, location=location)
        return cls(name, SentenceContext(sentence))

    @property
    def sentence(self) -> Sentence:
        """All sentences as one."""
        return self.context.sentence

    @property
    def location(self) -> str:
        return self.sentence.location

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.sentence.text,)

    @property
    def examples(self) -> tuple[tuple[str, ...], ...]:
        return tuple((sentence.text,) for sentence in self.context.sentences)

    @property
    def label(self) -> tuple[str, ...] | None:
        return self.sentence.tags


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFeatures(Features):
    """Features of an example, and the indices of the words that are predicted, in order: (W,)."""

    word_indices: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPrediction:
    """The words of an example with legal tags, its text and entities, and the logits of the predicted words.

    `word_indices` are the indices of these, None if it is all of them: a truncated word is O and has no logits.
    """

    id: str
    tags: tuple[str, ...]
    spans: tuple[EntitySpan, ...]
    words: tuple[str, ...] = ()
    text: str = ""
    logits: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))
    word_indices: Ints | None = None

    @property
    def logit_word_indices(self) -> Ints:
        return np.arange(len(self.logits)) if self.word_indices is None else self.word_indices

    def to_dict(self) -> dict[str, Any]:
        spans = [span.to_dict() for span in self.spans]
        return {"id": self.id, "words": list(self.words), "tags": list(self.tags), "spans": spans}

    def _repr_html_(self) -> str:
        return entities_html(self.text, self.spans)

    def __repr__(self) -> str:
        return f"TagPrediction([{', '.join(map(repr, self.spans))}])"


def tags_of(sentence: Sentence) -> tuple[str, ...]:
    """Return the tags of a labelled sentence; raise InputError if there are none."""
    if sentence.tags is None:
        raise InputError(f"{sentence.location}: there are no tags; give them, or name their column with --label")
    return sentence.tags


def labelled_fields(value: Any, label: Any) -> dict[str, Any]:
    """Return the fields of a record in memory: words with their tags, or a text with its spans (start, end, label)."""
    if isinstance(value, list | tuple):
        return {"tokens": value, "tags": label}
    if not isinstance(value, str):
        raise InputError(f"the input is {show_value(value)}; give a list of words, or a text")
    if not isinstance(label, list | tuple):
        raise InputError(f"the label is {show_value(label)}; give the text's entities: [(start, end, label), …]")
    spans = [
        dict(zip(("start", "end", "label"), span, strict=False)) if isinstance(span, list | tuple) else span
        for span in label
    ]
    return {"text": value, "spans": spans}
