"""The rows of a run: a corpus and a recipe in, the micro-batches of any step out, and the held-out ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch.distributed

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch, collate_examples
from bertworks.sampling.loading import Loader, StatefulLoader
from bertworks.sampling.order import ExampleOrder
from bertworks.sampling.samplers import OBJECTIVE_INPUTS, SAMPLERS
from bertworks.sampling.streams import Streams


class PretrainBatches:
    """Draws the rows of this process. Row r of step s of a phase is example s * batch + r; ranks share them out."""

    def __init__(self, corpus: Corpus, recipe: PretrainRecipe) -> None:
        if recipe.objective not in OBJECTIVE_INPUTS:
            raise SettingsError(
                f"there is no objective '{recipe.objective}'; choose one of: {', '.join(OBJECTIVE_INPUTS)}"
            )
        self._recipe = recipe
        self._pad = corpus.tokenizer.specials.pad
        self._sampling = OBJECTIVE_INPUTS[recipe.objective]
        self._corruption = self._sampling.corruption(corpus.tokenizer, recipe.masking)
        self._corpus = corpus
        self._loaders = [
            self._build_loader("train", phase.max_length, f"{phase.max_length}") for phase in recipe.phases
        ]
        self._prefetch: tuple[tuple[int, int], Future[list[Batch]]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")

    def get_batches(self, phase: int, step: int) -> Sequence[Batch]:
        """Return the micro-batches of a step; the next step's are prepared while this one is computed."""
        if self._prefetch is not None and self._prefetch[0] == (phase, step):
            batches = self._prefetch[1].result()
        else:
            batches = self._load_batches(phase, step)
        self._prefetch = ((phase, step + 1), self._thread.submit(self._load_batches, phase, step + 1))
        return batches

    def get_held_out_batches(self, phase: int) -> tuple[Iterator[Batch], int]:
        """Return batches of held-out examples, always the same ones with the same places hidden, and how many count.

        Processes take turns at them. All get equally many, so that they can compute together; who has none left gets
        the first example, which does not count.
        """
        loader = self._build_loader("held-out", self._recipe.phases[phase].max_length, "held-out")
        batches = list(loader.batches(self._recipe.num_eval_examples, self.micro_batch_size))
        rank, world = _rank_and_world_size()
        own = batches[rank::world]
        padded = own + [range(1)] * (-(-len(batches) // world) - len(own))
        return (self._load_batch(loader, numbers) for numbers in padded), len(own)

    @property
    def micro_batch_size(self) -> int:
        rank, world = _rank_and_world_size()
        del rank
        return self._recipe.micro_batch_size or max(1, self._recipe.batch_size // world)

    def _load_batches(self, phase: int, step: int) -> list[Batch]:
        rank, world = _rank_and_world_size()
        share = self._recipe.batch_size // world
        first = step * self._recipe.batch_size + rank * share
        return [
            self._load_batch(self._loaders[phase], range(start, min(start + self.micro_batch_size, first + share)))
            for start in range(first, first + share, self.micro_batch_size)
        ]

    def _load_batch(self, loader: Loader | StatefulLoader, indices: range) -> Batch:
        drawn = [loader.load_example(number) for number in indices]
        # Rows of equal length lie together, the longest first: then they can be attended together.
        order = np.argsort([-len(example) for example, _ in drawn], kind="stable")
        batch = collate_examples([drawn[place][0] for place in order], [drawn[place][1] for place in order], self._pad)
        return replace(batch, is_continuation=loader.is_continuation(indices[0]))

    def _build_loader(self, split: str, max_length: int, phase: str) -> Loader | StatefulLoader:
        way = SAMPLERS[self._sampling.sampler]
        arrangement = way.build(self._corpus.split(split), max_length, self._corpus.tokenizer.specials)
        stream = ExampleOrder(self._recipe.seed, phase, split)
        if isinstance(arrangement, Streams):
            if _rank_and_world_size()[1] > 1:
                raise SettingsError(
                    "rows that go on behind one another are read by a single process, which keeps their state; start "
                    "it without torchrun, or choose the objective 'next'"
                )
            few = min(self._recipe.batch_size, arrangement.num_anchors)
            return StatefulLoader(
                arrangement, self._corruption, stream, self._recipe.batch_size if split == "train" else few
            )
        return Loader(arrangement, self._corruption, stream, self._recipe.num_fresh_epochs)


def _rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and how many there are."""
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
