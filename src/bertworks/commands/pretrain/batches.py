"""The batches of a pretraining run: a corpus and a recipe in, micro-batches of any step and held-out batches out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from bertworks.commands.pretrain.recipe import Phase, PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.errors import SettingsError
from bertworks.objectives.registry import OBJECTIVES
from bertworks.parallel.process_group import rank, world_size
from bertworks.sampling.batch import Batch, collate_examples
from bertworks.sampling.loading import Loader, StatefulLoader
from bertworks.sampling.order import ExampleOrder
from bertworks.sampling.streams import Streams


class PretrainBatches:
    """Loads the batches of this process.

    Sequence i of step s of a phase is example s * batch_size + i; each rank loads an equal, contiguous part of them.
    A phase has its own order of examples and masks. Held-out examples are masked with the recipe's mask_prob in all
    phases, so that their losses can be compared.
    """

    def __init__(self, corpus: Corpus, recipe: PretrainRecipe) -> None:
        self._recipe = recipe
        self._pad = corpus.tokenizer.specials.pad
        self._objective = OBJECTIVES[recipe.objective]
        self._corpus = corpus
        self._phases = recipe.resolve_phases()
        self._loaders = [self._build_loader("train", phase, phase.name) for phase in self._phases]
        self._prefetch: tuple[tuple[int, int], Future[list[Batch]]] | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="batches")

    def get_batches(self, phase: int, step: int) -> Sequence[Batch]:
        """Return the micro-batches of a step; those of the next step are prefetched in a thread."""
        if self._prefetch is not None and self._prefetch[0] == (phase, step):
            batches = self._prefetch[1].result()
        else:
            batches = self._load_batches(phase, step)
        self._prefetch = ((phase, step + 1), self._executor.submit(self._load_batches, phase, step + 1))
        return batches

    def get_held_out_batches(self, phase: int) -> tuple[Iterator[Batch], int]:
        """Return this process's held-out batches, the same at every evaluation, and how many of them to score.

        All processes get the same number of batches, since they compute together. One that has fewer is padded with
        batches of the first example, which are not scored.
        """
        held_out = replace(self._phases[phase], masking=self._recipe.masking, batch_size=self._recipe.batch_size)
        loader = self._build_loader("held-out", held_out, "held-out")
        batches = list(loader.batches(self._recipe.num_eval_examples, self.micro_batch_size))
        local = batches[rank() :: world_size()]
        padded = local + [range(1)] * (-(-len(batches) // world_size()) - len(local))
        return (self._load_batch(loader, indices) for indices in padded), len(local)

    @property
    def micro_batch_size(self) -> int:
        largest = max(phase.batch_size for phase in self._phases)
        return self._recipe.micro_batch_size or max(1, largest // world_size())

    def _load_batches(self, phase: int, step: int) -> list[Batch]:
        batch_size = self._phases[phase].batch_size
        local_size = batch_size // world_size()
        first = step * batch_size + rank() * local_size
        return [
            self._load_batch(self._loaders[phase], range(start, min(start + self.micro_batch_size, first + local_size)))
            for start in range(first, first + local_size, self.micro_batch_size)
        ]

    def _load_batch(self, loader: Loader | StatefulLoader, indices: range) -> Batch:
        examples = [loader.load_example(index) for index in indices]
        # Longest first: sequences of equal length are adjacent, so that attention runs on them together.
        order = np.argsort([-len(example) for example, _ in examples], kind="stable")
        batch = collate_examples([examples[i][0] for i in order], [examples[i][1] for i in order], self._pad)
        return replace(batch, is_continuation=loader.is_continuation(indices[0]))

    def _build_loader(self, split: str, phase: Phase, order_name: str) -> Loader | StatefulLoader:
        tokenizer = self._corpus.tokenizer
        sampler = self._objective.sampler(self._corpus.split(split), phase.max_length, tokenizer.specials)
        corruption = self._objective.corruption(tokenizer, phase.masking)
        order = ExampleOrder(self._recipe.seed, order_name, split)
        if not isinstance(sampler, Streams):
            return Loader(sampler, corruption, order, self._recipe.num_fresh_epochs)
        if world_size() > 1:
            raise SettingsError(
                f"the objective '{self._recipe.objective}' carries state between steps and runs in a single process "
                f"only; start it without torchrun, or choose an objective without -stream"
            )
        num_streams = phase.batch_size if split == "train" else min(phase.batch_size, sampler.num_anchors)
        return StatefulLoader(sampler, corruption, order, num_streams)
