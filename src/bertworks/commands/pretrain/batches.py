"""The rows of a run: a corpus and a recipe in, the micro-batches of any step out, and the held-out ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch.distributed

from bertworks.commands.pretrain.recipe import Recipe
from bertworks.corpus.corpus import Corpus
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch, batch_of
from bertworks.sampling.loading import Lanes, Loader
from bertworks.sampling.order import Stream
from bertworks.sampling.samplers import ARRANGEMENTS, READS
from bertworks.sampling.streams import Streams


class Rows:
    """Draws the rows of this process. Row r of step s of a phase is example s * batch + r; ranks share them out."""

    def __init__(self, corpus: Corpus, recipe: Recipe) -> None:
        if recipe.objective not in READS:
            raise SettingsError(f"there is no objective '{recipe.objective}'; choose one of: {', '.join(READS)}")
        self._recipe = recipe
        self._pad = corpus.tokenizer.specials.pad
        self._reading = READS[recipe.objective]
        self._hider = self._reading.hider(corpus.tokenizer, recipe.masking)
        self._corpus = corpus
        self._loaders = [self._loader("train", phase.length, f"{phase.length}") for phase in recipe.phases]
        self._ahead: tuple[tuple[int, int], Future[list[Batch]]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")

    def draw(self, phase: int, step: int) -> Sequence[Batch]:
        """Return the micro-batches of a step; the next step's are prepared while this one is computed."""
        if self._ahead is not None and self._ahead[0] == (phase, step):
            batches = self._ahead[1].result()
        else:
            batches = self._drawn(phase, step)
        self._ahead = ((phase, step + 1), self._thread.submit(self._drawn, phase, step + 1))
        return batches

    def held_out(self, phase: int) -> tuple[Iterator[Batch], int]:
        """Return batches of held-out examples, always the same ones with the same places hidden, and how many count.

        Processes take turns at them. All get equally many, so that they can compute together; who has none left gets
        the first example, which does not count.
        """
        loader = self._loader("held-out", self._recipe.phases[phase].length, "held-out")
        batches = list(loader.batches(self._recipe.evaluate_examples, self.micro_batch))
        rank, world = _place()
        own = batches[rank::world]
        padded = own + [range(1)] * (-(-len(batches) // world) - len(own))
        return (self._batch(loader, numbers) for numbers in padded), len(own)

    @property
    def micro_batch(self) -> int:
        rank, world = _place()
        del rank
        return self._recipe.micro_batch or max(1, self._recipe.batch // world)

    def _drawn(self, phase: int, step: int) -> list[Batch]:
        rank, world = _place()
        share = self._recipe.batch // world
        first = step * self._recipe.batch + rank * share
        return [
            self._batch(self._loaders[phase], range(start, min(start + self.micro_batch, first + share)))
            for start in range(first, first + share, self.micro_batch)
        ]

    def _batch(self, loader: Loader | Lanes, numbers: range) -> Batch:
        drawn = [loader.draw(number) for number in numbers]
        # Rows of equal length lie together, the longest first: then they can be attended together.
        order = np.argsort([-len(example) for example, _ in drawn], kind="stable")
        batch = batch_of([drawn[place][0] for place in order], [drawn[place][1] for place in order], self._pad)
        return replace(batch, goes_on=loader.goes_on(numbers[0]))

    def _loader(self, split: str, length: int, phase: str) -> Loader | Lanes:
        way = ARRANGEMENTS[self._reading.arrangement]
        arrangement = way.arrange(self._corpus.split(split), length, self._corpus.tokenizer.specials)
        stream = Stream(self._recipe.seed, phase, split)
        if isinstance(arrangement, Streams):
            if _place()[1] > 1:
                raise SettingsError(
                    "rows that go on behind one another are read by a single process, which keeps their state; start "
                    "it without torchrun, or choose the objective 'next'"
                )
            few = min(self._recipe.batch, arrangement.num_anchors)
            return Lanes(arrangement, self._hider, stream, self._recipe.batch if split == "train" else few)
        return Loader(arrangement, self._hider, stream, self._recipe.num_fresh_epochs)


def _place() -> tuple[int, int]:
    """Return the rank of this process and how many there are."""
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
