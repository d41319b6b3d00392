"""What there is to explain: a case with its outputs and a target in, how much each output of each row counts out.

For every task it is the score of the target less the mean score of what else could have been said: a score alone says
nothing, since adding the same to all of them changes no probability. That is a sum over outputs, so rows can be
explained one by one.

W windows, C classes, T places of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.datasets.labelled_texts import TextCase
from bertworks.errors import InputError
from bertworks.sampling.windows import Run
from bertworks.tasks.answer import PassageCase, PassageQuestion
from bertworks.tasks.choose import ChoiceCase
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Question
from bertworks.tasks.tag import Tag, TagCase, TagQuestion
from bertworks.tasks.tag_documents import read_alone
from bertworks.vocabulary.tokenizer import Cut, Tokenizer

Floats = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Said:
    """A case, the rows that were asked, and what the head said of each."""

    task: Any
    case: Any
    question: Question
    outputs: Sequence[Floats]
    tokenizer: Tokenizer

    @property
    def prediction(self) -> Any:
        return self.task.answer(self.case, self.question, self.outputs)


@dataclass(frozen=True, slots=True)
class ReadText:
    """One of the texts of a case with its pieces. `title` tells people what it is."""

    title: str
    text: str
    cut: Cut


@dataclass(frozen=True, slots=True)
class Aim:
    """What is explained.

    factors    for each row, how much each of its outputs counts, in their shape; None where none does
    sources    for each row and each run of pieces in it: which text it is of, and at which piece the text begins
    """

    target: str
    texts: tuple[ReadText, ...]
    factors: tuple[Floats | None, ...]
    sources: tuple[tuple[tuple[int, int], ...], ...]


def aim_of(said: Said, target: str | None) -> Aim:
    """Return what there is to explain of what was said; without a target it is the prediction itself."""
    return AIMS[said.task.name](said, target)


def _of_class(said: Said, target: str | None) -> Aim:
    """One of the classes, or one of the labels that hold or not each by itself."""
    task: Classify = said.task
    chances = said.prediction.probabilities
    chosen = target if target is not None else max(task.labels, key=lambda name: chances[name])
    if chosen not in task.labels:
        raise InputError(f"there is no class '{chosen}' to explain; choose one of: {', '.join(task.labels)}")
    number = task.labels.index(chosen)
    # Of several labels at once each is scored alone: there is nothing else that could have been said instead.
    factors = np.eye(len(task.labels))[number] if task.several else _against_others(len(task.labels), number)
    return _of_all_windows(said, f"'{chosen}'", factors)


def _of_value(said: Said, target: str | None) -> Aim:
    if target not in (None, "value"):
        raise InputError(f"there is no '{target}' to explain: the model gives texts a number; leave the target out")
    return _of_all_windows(said, "value", np.ones(1))


def _of_all_windows(said: Said, target: str, factors: Floats) -> Aim:
    case: TextCase = said.case
    rows = said.question.rows
    titles = ("text", "pair") if len(case.texts) > 1 else ("text",)
    texts = tuple(_read(title, text, said) for title, text in zip(titles, case.texts, strict=True))
    sources = tuple((number, 0) for number in range(len(texts)))
    return Aim(target, texts, (factors / len(rows),) * len(rows), (sources,) * len(rows))


def _of_ending(said: Said, target: str | None) -> Aim:
    """An ending, by its number or as it is written; the others count against it."""
    case: ChoiceCase = said.case
    names = [str(number) for number in range(len(case.endings))]
    chosen = said.prediction.choice
    if target is not None:
        if target not in names and target not in case.endings:
            raise InputError(f"there is no ending '{target}' to explain; give a number from 0 to {names[-1]}")
        chosen = names.index(target) if target in names else case.endings.index(target)
    units = [row.unit for row in said.question.rows]
    by_ending = _against_others(len(names), chosen)
    texts = [_read("prompt", case.prompt, said)]
    texts += [_read(f"ending {name}", ending, said) for name, ending in zip(names, case.endings, strict=True)]
    factors = tuple(np.array([by_ending[unit] / units.count(unit)]) for unit in units)
    return Aim(f"ending {chosen}", tuple(texts), factors, tuple(((0, 0), (1 + unit, 0)) for unit in units))


def _of_word(said: Said, target: str | None) -> Aim:
    """The label of a word: "Paris", "Paris=B-LOC", or with the word's number from 0 on instead, "3=B-LOC".

    Without a target it is the first word of the entity of which the model is surest, or, where it has found none, the
    word that is the nearest to being one.
    """
    task: Tag = said.task
    case: TagCase = said.case
    assert isinstance(said.question, TagQuestion)
    logits = np.concatenate(list(said.outputs))  # (words asked, C)
    asked, label = _asked_and_label(said, said.question.words.tolist(), target, logits)
    factors: list[Floats | None] = []
    at = 0
    for output in said.outputs:
        own = None
        if at <= asked < at + len(output):
            own = np.zeros(output.shape)
            own[asked - at] = _against_others(len(task.labels), label)
        factors.append(own)
        at += len(output)
    text = ReadText("text", case.sentence.text, _cut_words(case, said.tokenizer))
    sources = ((0, _first_piece(said.question)),)
    named = f"'{case.sentence.words[said.question.words[asked]]}' as {task.labels[label]}"
    return Aim(named, (text,), tuple(factors), (sources,) * len(factors))


def _first_piece(question: Question) -> int:
    """Return where the first word begins among all the pieces that are read: before it stands its document."""
    for row in question.rows:
        if row.places is not None and len(row.places):
            run = row.window.runs[0]
            return int(row.places[0]) - run.place + run.first
    raise AssertionError("a sentence without words is not asked")


def _asked_and_label(said: Said, numbers: list[int], target: str | None, logits: Floats) -> tuple[int, int]:
    """Return which of the words asked is meant, whose numbers in the text are given, and for which label.

    They are not all words where texts are cut: of a document, the end of any of its sentences may be missing.
    """
    if target is None:
        return _most_telling(said, numbers, logits)
    labels, written = list(said.task.labels), list(said.case.sentence.words)
    words = [written[number] for number in numbers]
    name, _, tag = target.rpartition("=")
    if not name or tag not in labels:
        name, tag = target, ""
        if "=" in target and target not in written:
            raise InputError(f"there is no label '{target.rpartition('=')[2]}'; choose one of: {', '.join(labels)}")
    if name in words:
        asked = words.index(name)
    elif name.isdecimal() and int(name) in numbers:
        asked = numbers.index(int(name))
    elif name in written or (name.isdecimal() and int(name) < len(written)):
        raise InputError(f"{said.case.place}: the word '{name}' was cut off by the model's window rule, and not read")
    else:
        raise InputError(f"{said.case.place}: there is no word '{name}' to explain; give a word, or its number from 0")
    return asked, labels.index(tag) if tag else int(logits[asked].argmax())


def _most_telling(said: Said, numbers: list[int], logits: Floats) -> tuple[int, int]:
    spans, offsets = said.prediction.spans, said.case.sentence.offsets
    if spans:
        surest = max(spans, key=lambda span: span.probability)
        asked = next(at for at, number in enumerate(numbers) if offsets[number][0] == surest.start)
    else:
        best = np.sort(logits, axis=1)[:, -2:]
        asked = int((best[:, -1] - best[:, 0]).argmin())
    return asked, int(logits[asked].argmax())


def _cut_words(case: TagCase, tokenizer: Tokenizer) -> Cut:
    """Return the pieces of a sentence that was cut word by word, with offsets into its text."""
    alone = read_alone(case.around, tokenizer)
    counts = np.diff(alone.firsts, append=len(alone.cut))
    offsets: list[tuple[int, int]] = []
    for word, (start, end), count in zip(case.sentence.words, case.sentence.offsets, counts.tolist(), strict=True):
        own = tokenizer.cut(word).offsets
        # A word of which nothing remains is read as the unknown piece, which stands for all of it.
        offsets += (own + start).tolist() if len(own) == count else [(start, end)] * count
    begins_word = np.zeros(len(alone.cut), dtype=np.bool_)
    begins_word[alone.firsts] = True
    return Cut(alone.cut.ids, np.array(offsets, dtype=np.int64).reshape(-1, 2), begins_word)


# What can be explained of an answer, and which of the two scores of a place it takes.
_ENDS = {"start": (0,), "end": (1,), "answer": (0, 1), "no answer": (0, 1)}


def _of_answer(said: Said, target: str | None) -> Aim:
    """Where the best answer starts, where it ends, both ("answer"), or that there is none ("no answer").

    It is explained in the row where the answer stands farthest from the edges; rows with the same part of the passage,
    under parts of a long question, share it.
    """
    case: PassageCase = said.case
    prediction = said.prediction
    chosen = target if target is not None else ("answer" if prediction.text else "no answer")
    if chosen not in _ENDS:
        raise InputError(f"there is no '{chosen}' to explain in an answer; choose one of: {', '.join(_ENDS)}")
    best = prediction if prediction.text else prediction.runners_up[0]
    if chosen == "no answer":  # as the task does, by the row that is the least sure of it
        places = {min(range(len(said.outputs)), key=lambda number: said.outputs[number][0].sum()): (0, 0)}
    else:
        places = _where(said, best.start, best.end)
    factors: list[Floats | None] = [None] * len(said.outputs)
    for number, ends in places.items():
        own = np.zeros(said.outputs[number].shape)  # (T, 2)
        for side in _ENDS[chosen]:
            own[:, side] = _against_others(len(own), ends[side]) / len(places)
        factors[number] = own
    texts = (_read("question", case.question, said), _read("passage", case.passage, said))
    named = chosen if chosen == "no answer" else f"{chosen} '{best.text}'"
    return Aim(named, texts, tuple(factors), (((0, 0), (1, 0)),) * len(factors))


def _where(said: Said, begin: int, end: int) -> dict[int, tuple[int, int]]:
    """Return the rows that speak for a span of characters, each with the places where it starts and ends there.

    Several pieces of a word may begin the same span: it is the one that the model likes best.
    """
    assert isinstance(said.question, PassageQuestion)
    edges = said.question.edges
    starts, ends = np.flatnonzero(edges.begins == begin), np.flatnonzero(edges.ends == end)
    runs = [row.window.runs[1] for row in said.question.rows]
    # Of a word that is longer than a window, some pieces are enough: the model has seen no more.
    holding = [run for run in runs if len(_places(run, starts)) and len(_places(run, ends))]
    nearest = max(holding, key=lambda run: min(starts[0] - run.first, run.first + run.count - 1 - ends[-1])).first
    found = {}
    for number, (run, scores) in enumerate(zip(runs, said.outputs, strict=True)):
        if run.first == nearest:
            first, last = _places(run, starts), _places(run, ends)
            found[number] = (int(first[scores[first, 0].argmax()]), int(last[scores[last, 1].argmax()]))
    return found


def _places(run: Run, pieces: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the places of those pieces in a row that are in the run."""
    return pieces[(pieces >= run.first) & (pieces < run.first + run.count)] - run.first + run.place


def _against_others(count: int, number: int) -> Floats:
    """Return 1 at that number, and at all others an equal share of -1."""
    if count == 1:
        return np.ones(1)
    factors = np.full(count, -1 / (count - 1))
    factors[number] = 1.0
    return factors


def _read(title: str, text: str, said: Said) -> ReadText:
    return ReadText(title, text, said.tokenizer.cut(text))


AIMS: dict[str, Callable[[Said, str | None], Aim]] = {
    "classify": _of_class,
    "regress": _of_value,
    "choose": _of_ending,
    "tag": _of_word,
    "answer": _of_answer,
}
