"""Draw examples: a numbered row in, its Example and what is hidden in it out; a pure function, in any process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bertworks.examples.example import Example
from bertworks.examples.masking import Hidden
from bertworks.examples.order import Stream


class Arrangement(Protocol):
    """How sentences become examples: pairs, blocks. It knows its split and length, and how many anchors those give."""

    @property
    def num_anchors(self) -> int: ...

    def example(self, anchor: float, generator: np.random.Generator) -> Example: ...


class Hider(Protocol):
    """What is hidden in an example, or asked about it."""

    def hide(self, example: Example, generator: np.random.Generator) -> Hidden: ...


@dataclass(frozen=True, slots=True)
class Loader:
    """All examples of one phase in their order.

    Number n is index n mod N of epoch n div N. With `num_fresh_epochs` above 0 the examples repeat after so many
    epochs, pairs, masks and all (1: static masks, as in Google's prepared files); 0 means that they never do.
    """

    arrangement: Arrangement
    hider: Hider
    stream: Stream
    num_fresh_epochs: int = 0

    def draw(self, number: int) -> tuple[Example, Hidden]:
        """Return example `number` of the run, with its places hidden."""
        size = self.arrangement.num_anchors
        epoch, index = divmod(number, size)
        anchor = self.stream.permuted(epoch, index, size)
        drawn = epoch % self.num_fresh_epochs if self.num_fresh_epochs else epoch
        return self.at(drawn, anchor)

    def at(self, epoch: int, anchor: int) -> tuple[Example, Hidden]:
        """Return the example of one anchor in one epoch."""
        generator = self.stream.generator(epoch, anchor)
        example = self.arrangement.example(anchor + self.stream.offset(epoch), generator)
        return example, self.hider.hide(example, generator)

    def epoch(self, epoch: int) -> Iterator[tuple[Example, Hidden]]:
        """Yield all examples of one epoch, in its order."""
        size = self.arrangement.num_anchors
        return (self.draw(epoch * size + index) for index in range(size))
