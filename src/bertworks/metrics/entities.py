"""BIO tags in, precision, recall and F1 of entities out, overall and by type.

An entity is correct if its first word, last word and type are correct. seqeval extracts the entities; they are only
counted here, in constant memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from bertworks.errors import InputError, SettingsError
from bertworks.metrics.classification import Matches

Tags = Sequence[str]
Entity = tuple[str, int, int]  # type, first word, last word


@dataclass(frozen=True, slots=True)
class EntityScores:
    """The matches of all entities (micro average), and of each type."""

    overall: Matches
    by_type: dict[str, Matches]

    @property
    def macro_f1(self) -> float:
        """The unweighted mean over types; 0 if there are no entities."""
        types = self.by_type.values()
        return sum(matches.f1 for matches in types) / len(types) if types else 0.0


class EntityTally:
    """Counts entities. `mode` says what an I- without a B- is: see MODES."""

    def __init__(self, mode: str = "default") -> None:
        if mode not in MODES:
            raise SettingsError(f"there is no mode '{mode}'; choose one of: {', '.join(MODES)}")
        self._entities_of = MODES[mode]
        self._correct: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._gold: Counter[str] = Counter()

    def add(self, predicted: Sequence[Tags], gold: Sequence[Tags]) -> None:
        """Add a batch of sentences, each a sequence of tags."""
        for predicted_tags, gold_tags in zip(predicted, gold, strict=True):
            assert len(predicted_tags) == len(gold_tags), (len(predicted_tags), len(gold_tags))
            self.add_entities(*(self._entities_of(_check_tags(tags)) for tags in (predicted_tags, gold_tags)))

    def add_entities(self, predicted: AbstractSet[Entity], gold: AbstractSet[Entity]) -> None:
        """Add the entities of a sentence."""
        self._predicted.update(entity[0] for entity in predicted)
        self._gold.update(entity[0] for entity in gold)
        self._correct.update(entity[0] for entity in predicted & gold)

    def scores(self) -> EntityScores:
        """Return the scores of all sentences so far."""
        overall = Matches(self._correct.total(), self._predicted.total(), self._gold.total())
        types = sorted(self._predicted.keys() | self._gold.keys())
        by_type = {kind: Matches(self._correct[kind], self._predicted[kind], self._gold[kind]) for kind in types}
        return EntityScores(overall, by_type)


def entity_scores(predicted: Sequence[Tags], gold: Sequence[Tags], mode: str = "default") -> EntityScores:
    """Return the scores of sentences, each a sequence of tags."""
    tally = EntityTally(mode)
    tally.add(predicted, gold)
    return tally.scores()


def _default_entities(tags: list[str]) -> set[Entity]:
    # Imported here: seqeval imports scikit-learn, which takes over a second.
    from seqeval.metrics.sequence_labeling import get_entities

    return {(kind, int(first), int(last)) for kind, first, last in get_entities(tags)}


def _strict_entities(tags: list[str]) -> set[Entity]:
    from seqeval.scheme import IOB2, Tokens

    return {(entity.tag, entity.start, entity.end - 1) for entity in Tokens(tags, IOB2).entities}


# What starts an entity. "default": B-, or I- after another type or O, as in the scripts of CoNLL-2000 and 2003;
# "strict": B- only; an I- that continues nothing is ignored.
MODES: dict[str, Callable[[list[str]], set[Entity]]] = {"default": _default_entities, "strict": _strict_entities}


def _check_tags(tags: Tags) -> list[str]:
    """Return the tags as a list; raise InputError for what is not a BIO tag, which seqeval would guess at."""
    for number, tag in enumerate(tags, 1):
        if tag != "O" and not (tag[:2] in ("B-", "I-") and len(tag) > 2):
            raise InputError(
                f"tag {number} of a sentence is '{tag}', which is not O, B-TYPE or I-TYPE; convert it to BIO"
            )
    return list(tags)
