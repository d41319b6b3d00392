"""BIO tags in, precision, recall and F1 of whole entities out, over all and for each type.

An entity is right if its first word, its last word and its type are right. Entities are found by seqeval, a batch at a
time, and only counted here, so the memory does not grow with the sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bertworks.errors import InputError, SettingsError
from bertworks.metrics.classification import Matches

Tags = Sequence[str]
Entity = tuple[str, int, int]  # type, first word, last word


@dataclass(frozen=True, slots=True)
class EntityScores:
    """How entities were found: all of them (the micro average), and those of each type by name."""

    overall: Matches
    by_type: dict[str, Matches]

    @property
    def macro_f1(self) -> float:
        """The mean over types, each as weighty as the other; 0 where there is no entity at all."""
        types = self.by_type.values()
        return sum(matches.f1 for matches in types) / len(types) if types else 0.0


class EntityTally:
    """Counts entities sentence by sentence. `reading` says what an I- without its B- is, see READINGS."""

    def __init__(self, mode: str = "default") -> None:
        if mode not in MODES:
            raise SettingsError(f"there is no reading of tags '{mode}'; choose one of: {', '.join(MODES)}")
        self._entities_of = MODES[mode]
        self._correct: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._gold: Counter[str] = Counter()

    def add(self, predicted: Sequence[Tags], gold: Sequence[Tags]) -> None:
        """Count a batch of sentences, each a sequence of tags."""
        for ours, theirs in zip(predicted, gold, strict=True):
            assert len(ours) == len(theirs), (len(ours), len(theirs))
            found, there = self._entities_of(_check_tags(ours)), self._entities_of(_check_tags(theirs))
            self._predicted.update(entity[0] for entity in found)
            self._gold.update(entity[0] for entity in there)
            self._correct.update(entity[0] for entity in found & there)

    def scores(self) -> EntityScores:
        """Return the scores of all that was counted."""
        overall = Matches(self._correct.total(), self._predicted.total(), self._gold.total())
        types = sorted(self._predicted.keys() | self._gold.keys())
        by_type = {kind: Matches(self._correct[kind], self._predicted[kind], self._gold[kind]) for kind in types}
        return EntityScores(overall, by_type)


def entity_scores(predicted: Sequence[Tags], gold: Sequence[Tags], mode: str = "default") -> EntityScores:
    """Return the scores of whole sequences of sentences."""
    tally = EntityTally(mode)
    tally.add(predicted, gold)
    return tally.scores()


def _default_entities(tags: list[str]) -> set[Entity]:
    # seqeval brings scikit-learn, which takes over a second to import: only those who score entities wait for it.
    from seqeval.metrics.sequence_labeling import get_entities

    return {(kind, int(first), int(last)) for kind, first, last in get_entities(tags)}


def _strict_entities(tags: list[str]) -> set[Entity]:
    from seqeval.scheme import IOB2, Tokens

    return {(entity.tag, entity.start, entity.end - 1) for entity in Tokens(tags, IOB2).entities}


# What starts an entity. "default": B-, or I- behind another type or none, as the script of CoNLL-2000 and 2003 reads
# tags; "strict": B- only, an I- that continues nothing is no entity.
MODES: dict[str, Callable[[list[str]], set[Entity]]] = {"default": _default_entities, "strict": _strict_entities}


def _check_tags(tags: Tags) -> list[str]:
    """Return the tags as seqeval wants them. It would guess at what is no BIO tag, so that is refused."""
    for place, tag in enumerate(tags, 1):
        if tag != "O" and not (tag[:2] in ("B-", "I-") and len(tag) > 2):
            raise InputError(
                f"tag {place} of a sentence is '{tag}', which is not O, B-TYPE or I-TYPE; convert it to BIO"
            )
    return list(tags)
