"""The facts of a run beside its figures: a corpus and this machine in, what `run.json` holds out."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.corpus.corpus import Corpus
from bertworks.corpus.shard import map_shard
from bertworks.parallel.machine import machine_info
from bertworks.training.loop import world_size


def collect_run_info(
    corpus: Corpus, token_counts: npt.NDArray[np.int64], micro_batch_size: int, previous: dict[str, Any]
) -> dict[str, Any]:
    """Return the facts of a run that starts or, where there are facts from before, goes on."""
    return {
        "ln_v": math.log(corpus.tokenizer.vocab_size),
        "unigram_entropy": entropy(token_counts),
        "machine": machine_info(),
        "processes": world_size(),
        "micro_batch": micro_batch_size,
        "corpus": _describe_corpus(corpus),
        "started": previous.get("started", now()),
        "warnings": list(previous.get("warnings", [])),
    }


def describe_changes(previous: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Return a sentence if the run goes on under conditions that change the last bits of a sum."""
    then, here = ({**facts.get("machine", {}), **facts} for facts in (previous, current))
    names = ("processor", "torch", "threads", "processes", "sharded", "micro_batch")
    changed = [f"{name} {then[name]} → {here[name]}" for name in names if name in then and then[name] != here[name]]
    return [f"going on with {', '.join(changed)}: close, but not the same to the bit"] if changed else []


def now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def count_tokens(corpus: Corpus, max_tokens: int = 20_000_000) -> npt.NDArray[np.int64]:
    """Return how often each piece occurs, counted over at most about so many pieces."""
    counts = np.zeros(corpus.tokenizer.vocab_size, dtype=np.int64)
    for shard in corpus.tokens_manifest["shards"]:
        counts += np.bincount(map_shard(corpus.tokens_folder / shard["file"]).input_ids, minlength=len(counts))
        if counts.sum() > max_tokens:
            break
    return counts


def entropy(counts: npt.NDArray[np.int64]) -> float:
    """Return the entropy of counts in nats: the loss of knowing only how frequent each piece is."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def unigram_entropy(corpus: Corpus) -> float:
    """Return the entropy of the pieces of a corpus in nats."""
    return entropy(count_tokens(corpus))


def _describe_corpus(corpus: Corpus) -> dict[str, Any]:
    told = corpus.tokens_manifest
    return {
        "documents": corpus.manifest["documents"],
        "sentences": corpus.manifest["sentences"],
        "pieces": told["counts"]["tokens"],
        "vocabulary": f"{told['kind']}, {told['size']:,} pieces",
    }
