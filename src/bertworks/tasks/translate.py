"""Translate: texts beside their translations in, translations out; the task of the Transformer.

A text that is longer than the model reads is translated sentence by sentence. While it learns a model writes greedily;
with the finished one goes a beam search. B rows, P places that are asked, V pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.datasets.files import Line
from bertworks.datasets.labelled_texts import TextCase
from bertworks.datasets.translations import read_pairs, texts_alone
from bertworks.encoders.layers import Seeds
from bertworks.encoders.stack import BertSizes, Stack
from bertworks.encoders.transformer import TransformerSizes
from bertworks.errors import InputError, SettingsError
from bertworks.metrics.translation import TranslationTally, cut_of
from bertworks.objectives.cross_entropy import count_right, cross_entropy_sum, losses_of
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import Window, WindowRule
from bertworks.tasks.beam_search import Searching, Writer
from bertworks.tasks.contract import Asked, Mistake, Question, Scored, Task, worst
from bertworks.text.document import Counts
from bertworks.text.sentences import split_sentences
from bertworks.vocabulary.surface_forms import is_wide, prose_written
from bertworks.vocabulary.tokenizer import Tokenizer

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_GREEDY = Searching(beams=1)
# A model that is below this on its own training pairs has not learned them.
_LOW_BLEU = 0.2
# What stands in an output before the pieces.
_NUM_TOLD = 4


@dataclass(frozen=True, slots=True)
class Translated:
    """A translation, its log probability and pieces, and whether it came to its end within the pieces allowed.

    `reference` is the loss of the right translation, summed, and over how many pieces; None where it is not known.
    """

    id: str
    text: str
    log_probability: float
    num_pieces: int
    is_whole: bool
    reference: tuple[float, int] | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "translation": self.text,
            "log_probability": self.log_probability,
            "is_whole": self.is_whole,
        }


@dataclass(frozen=True, slots=True)
class TranslationQuestion(Question):
    """The rows of a text, and the vocabulary in which its translation is written."""

    tokenizer: Tokenizer | None = None


class TranslationHead(nn.Module):
    """What is added to the scores of the pieces; the rest is compared with the table of pieces itself.

    It is told and not learned: the paper has none, and models that were trained elsewhere may bring one.
    """

    bias: torch.Tensor  # (1, V)

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(1, vocabulary))


@dataclass(frozen=True, slots=True)
class Translate:
    """In other words. Models are chosen by BLEU.

    cut         how sacrebleu cuts texts for it
    searching   how translations are looked for; `later` how they will be when all is learned
    smoothing   how much of what is right all pieces share while a model learns
    start       the piece that a translation begins with; None: the first special one
    """

    name: ClassVar[str] = "translate"
    head_kind: ClassVar[str] = "translations"
    default_rule: ClassVar[WindowRule] = WindowRule()
    cut: str = "13a"
    searching: Searching = field(default_factory=Searching)
    later: Searching = field(default_factory=Searching)
    smoothing: float = 0.1
    start: int | None = None

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TextCase]:
        return read_pairs(path, columns, counts)

    @classmethod
    def unlabelled(cls, lines: Iterable[Line], columns: Mapping[str, str]) -> Iterator[TextCase]:
        return texts_alone(lines, columns)

    @classmethod
    def learned(cls, cases: Sequence[TextCase], settings: Mapping[str, Any]) -> Translate:
        cut = settings.get("cut") or cut_of(case.label for case in cases if case.label is not None)
        TranslationTally(cut)  # a part that is missing is missed now, not after an hour
        smoothing = float(settings.get("smoothing", cls().smoothing))
        if not 0 <= smoothing < 1:
            raise SettingsError(f"smoothing is {smoothing}; give a number from 0 to below 1, such as 0.1")
        return cls(cut, _GREEDY, settings.get("searching", Searching()), smoothing)

    @classmethod
    def told(cls, told: Mapping[str, Any], config: Mapping[str, Any]) -> Translate:
        searching = Searching(**told.get("searching", {}))
        return cls(told.get("cut", "13a"), searching, searching, start=config.get("decoder_start_token_id"))

    def tell(self) -> dict[str, Any]:
        return {"cut": self.cut, "searching": asdict(self.searching)}

    def config(self) -> dict[str, Any]:
        return {}

    def head(self, sizes: BertSizes) -> nn.Module:
        if not isinstance(sizes, TransformerSizes):
            raise SettingsError(
                f"a model of the family '{sizes.family}' has no decoder and cannot translate; begin a new one with "
                f"--recipe transformer and --vocab, or choose one that was begun so"
            )
        return TranslationHead(sizes.vocabulary)

    @property
    def main(self) -> str:
        return "bleu"

    def ask(self, case: TextCase, tokenizer: Tokenizer, rule: WindowRule) -> TranslationQuestion:
        """Return the rows of a text. A pair too long to be read together is not learned from, and not cut either."""
        sources, num_cut = _sources(case.texts[0], tokenizer, rule)
        said = None if case.label is None else tokenizer.cut(case.label).ids
        teaches = said is not None and len(sources) == 1 and not num_cut and len(said) < rule.length
        start = tokenizer.specials.first if self.start is None else self.start
        read, wanted = [start], np.empty(0, dtype=np.int64)
        if said is not None and teaches:
            read, wanted = [start, *said.tolist()], np.append(said, tokenizer.specials.separator).astype(np.int64)
        target = _row(np.array(read, dtype=np.int64))
        places = np.arange(len(wanted))
        rows = tuple(Asked(source, places=places, targets=wanted, target=target) for source in sources)
        return TranslationQuestion(rows, label=case.label, num_cut=num_cut, teaches=teaches, tokenizer=tokenizer)

    def labels_of(self, questions: Sequence[Question]) -> dict[str, torch.Tensor]:
        return {}

    def losses(self, encoder: Stack, head: nn.Module, batch: Batch, seeds: Seeds | None) -> torch.Tensor:
        """Return the summed loss, smoothed where something is learned; scores are never there all at once."""
        vectors, table, bias, targets = _compared(encoder, head, batch, seeds)
        if torch.is_grad_enabled():
            return cross_entropy_sum(vectors, table, bias, targets, 1.0, self.smoothing)
        return count_right(vectors, table, bias, targets)[0]

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return outputs

    def num_answers(self, batch: Batch) -> int:
        assert batch.targets is not None
        return len(batch.targets)

    def write(self, encoder: Stack, head: nn.Module, batch: Batch, tokenizer: Tokenizer) -> list[Floats]:
        """Return for each row the summed loss of the right translation and over how many pieces, the log probability
        of the one that was found, whether it came to its end, and then its pieces."""
        assert batch.source is not None
        end = tokenizer.specials.separator
        never = tuple(number for number in tokenizer.specials.ids if number != end)
        bias = head.bias[0]  # type: ignore[index]
        found = Writer(encoder, bias, int(batch.ids[0, 0]), end, never).write(batch.source, self.searching)
        known = _references(encoder, head, batch).tolist()
        return [
            np.array([*told, one.log_probability, one.is_whole, *one.pieces], dtype=np.float32)
            for told, one in zip(known, found, strict=True)
        ]

    def answer(self, case: TextCase, question: Question, outputs: Sequence[Floats]) -> Translated:
        assert isinstance(question, TranslationQuestion)
        assert question.tokenizer is not None
        pieces = [output[_NUM_TOLD:].astype(np.int64).tolist() for output in outputs]
        text = ""
        for own in pieces:
            more = prose_written(question.tokenizer, own)
            text += more if not text or is_wide(text) else f" {more}"
        count = int(sum(output[1] for output in outputs))
        return Translated(
            case.id,
            text,
            float(sum(output[2] for output in outputs)),
            sum(len(own) + 1 for own in pieces),
            all(bool(output[3]) for output in outputs),
            (float(sum(output[0] for output in outputs)), count) if count else None,
        )

    def score(self, pairs: Iterable[tuple[TextCase, Translated]]) -> Scored:
        tally = TranslationTally(self.cut)
        mistakes: list[Mistake] = []
        lost, count = 0.0, 0
        for case, said in pairs:
            if case.label is None:
                raise InputError(f"{case.place}: there is no translation to compare with; name its column with --label")
            tally.add(said.text, case.label)
            if said.reference is not None:
                lost, count = lost + said.reference[0], count + said.reference[1]
            if said.text != case.label:
                sure = math.exp(said.log_probability / max(said.num_pieces, 1))
                mistakes = worst([*mistakes, Mistake(sure, case.texts, case.label, said.text, case.place)])
        loss = {"loss": lost / count} if count else {}
        return Scored({**tally.scores(), **loss}, self.main, {"mistakes": mistakes}, _LOW_BLEU)

    def calibrated(self, cases: Sequence[TextCase], predictions: Sequence[Translated]) -> Task:
        """Return the task as it will be used: with a search."""
        return replace(self, searching=self.later)


def _compared(
    encoder: Stack, head: nn.Module, batch: Batch, seeds: Seeds | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return vectors (P, D), the table of pieces (V, D) they are compared with, the bias (V,) and the targets (P,)."""
    assert batch.places is not None
    assert batch.targets is not None
    bias: torch.Tensor = head.bias[0]  # type: ignore[index]
    return encoder(batch, seeds=seeds).at(batch.places), encoder.pieces.weight, bias, batch.targets


def _references(encoder: Stack, head: nn.Module, batch: Batch) -> torch.Tensor:
    """Return (B, 2): the summed loss of what is right in each row, and over how many pieces."""
    found = torch.zeros(len(batch.ids), 2, device=batch.ids.device)
    if batch.places is None or batch.targets is None or not len(batch.targets):
        return found
    rows = batch.places // batch.ids.shape[1]
    losses = losses_of(*_compared(encoder, head, batch, None)).to(found.dtype)
    return found.index_add(0, rows, torch.stack([losses, torch.ones_like(losses)], 1))


def _sources(text: str, tokenizer: Tokenizer, rule: WindowRule) -> tuple[list[Window], int]:
    """Return the rows in which a text is read, and how many pieces were cut off because the rule says so."""
    room = rule.length - tokenizer.num_special(1)
    ids = tokenizer.cut(text).ids
    if len(ids) <= room or rule.truncate:
        rows = [_framed(tokenizer, ids[:room])] if len(ids) else []
        return rows, max(0, len(ids) - room)
    return [_framed(tokenizer, own) for own in _stretches(text, tokenizer, room)], 0


def _stretches(text: str, tokenizer: Tokenizer, room: int) -> Iterator[Ints]:
    """Yield the pieces of as many sentences at a time as there is room for; what is longer, in equal parts."""
    gathered = np.empty(0, dtype=np.int64)
    for sentence in split_sentences(text):
        own = tokenizer.cut(sentence).ids
        if len(gathered) and len(gathered) + len(own) > room:
            yield gathered
            gathered = own[:0]
        if len(own) > room:
            yield from np.array_split(own, -(-len(own) // room))
        else:
            gathered = np.concatenate([gathered, own])
    if len(gathered):
        yield gathered


def _framed(tokenizer: Tokenizer, ids: Ints) -> Window:
    return _row(tokenizer.row(ids)[0])


def _row(ids: Ints) -> Window:
    return Window(ids, np.zeros_like(ids), ())
