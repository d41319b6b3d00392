"""Campaigns of faults: their size and seed in, a record of what came of each try out, for docs/reliability.md."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import bertworks

MAX_NOTES = 10


@dataclass(frozen=True, slots=True)
class Campaigns:
    """How much of each campaign is run (1: all of it), from which seed, and the folder of the records."""

    scale: float
    seed: int
    folder: Path

    def start(self, name: str, planned: int, part: str = "") -> Campaign:
        """Start the campaign `name`, or a part of it; its full size is `planned` tries, or seconds."""
        return Campaign(settings=self, name=name, planned=planned, part=part)


@dataclass(slots=True, kw_only=True)
class Campaign:
    """A campaign that is running: the outcome of each try so far, and notes on those that went wrong."""

    settings: Campaigns
    name: str
    planned: int
    part: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        """How many tries, or seconds, of the planned ones are run."""
        return max(1, round(self.planned * self.settings.scale))

    def random(self) -> random.Random:
        """Return a generator that depends on the seed and on the name of the campaign only."""
        return random.Random(f"{self.settings.seed} {self.name}")

    def add(self, outcome: str, count: int = 1, note: str = "") -> None:
        """Count the outcome of a try, or of several."""
        self.outcomes[outcome] += count
        if note:
            self.notes.append(note)

    @contextlib.contextmanager
    def recording(self, outcome: str, count: Callable[[], int], **values: object) -> Iterator[None]:
        """Record so many tries with an outcome after the block, or how the block failed."""
        try:
            yield
        except Exception as error:
            self.add("failures", note=repr(error))
        else:
            self.add(outcome, count())
        self.finish(good=(outcome,), bad=("failures",), **values)

    def finish(self, good: Sequence[str], bad: Sequence[str], **values: object) -> None:
        """Write the record with further `values`, then fail if any try had another outcome than a `good` one."""
        record = {
            "name": self.name,
            "tries": self.outcomes.total(),
            "planned": self.planned,
            "outcomes": {outcome: self.outcomes[outcome] for outcome in [*good, *bad, *self.outcomes]},
            "seed": self.settings.seed,
            "date": datetime.date.today().isoformat(),
            "minutes": (time.monotonic() - self.started) / 60,
            "version": bertworks.__version__,
            "notes": self.notes[:MAX_NOTES],
            **values,
        }
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        file_name = "-".join(re.findall(r"[\w.]+", f"{self.name} {self.part} {self.settings.seed}"))
        path = self.settings.folder / f"{file_name}.json"
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        failed = {outcome: count for outcome, count in self.outcomes.items() if outcome not in good and count}
        assert not failed, f"{self.name}, seed {self.settings.seed}: {failed}; " + "\n".join(self.notes[:MAX_NOTES])
