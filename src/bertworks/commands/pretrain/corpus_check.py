"""The corpus of a run compared with its hashes: a corpus in; an error in all processes if a shard differs out.

One process of each node hashes the shards. If that takes more than a second, it goes on in the background while the
run trains, and the run waits for it before its first checkpoint.
"""

from __future__ import annotations

from bertworks.corpus.corpus import Corpus, CorpusVerification
from bertworks.errors import FolderError
from bertworks.parallel.process_group import all_gather, is_first_of_node

_SECONDS_TO_WAIT = 1.0


class CorpusCheck:
    """The check of one run; it begins at once. All processes call it at the same steps."""

    def __init__(self, corpus: Corpus) -> None:
        self._verification = CorpusVerification(corpus) if is_first_of_node() else None
        self._is_finished = False
        if self._verification is not None:
            self._verification.wait(_SECONDS_TO_WAIT)
        self.raise_error()

    @property
    def is_running(self) -> bool:
        return self._verification is not None and not self._verification.wait(0)

    def raise_error(self) -> None:
        """Raise an error if this process has found a bad shard by now."""
        if self._verification is not None and self._verification.error:
            raise FolderError(self._verification.error)

    def finish(self) -> None:
        """Wait for the processes of all nodes; all of them raise the error if one has found a bad shard."""
        if self._is_finished:
            return
        error = ""
        if self._verification is not None:
            self._verification.wait()
            error = self._verification.error
        for message in filter(None, all_gather(error)):
            raise FolderError(message)
        self._is_finished = True
