"""What a run records of itself: a corpus, this machine and a recipe in; run.json and the precision of the run out."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.corpus.corpus import Corpus
from bertworks.corpus.shard import open_shard
from bertworks.encoders.precision import AUTO, describe_precision, resolve_precision
from bertworks.parallel.machine import machine_info
from bertworks.parallel.process_group import world_size
from bertworks.settings import recipe_table


def collect_run_info(
    corpus: Corpus, token_counts: npt.NDArray[np.int64], micro_batch_size: int, previous: dict[str, Any]
) -> dict[str, Any]:
    """Return the run.json of a run that starts, or continues with the `previous` run.json."""
    return {
        "uniform_loss": math.log(corpus.tokenizer.vocab_size),
        "unigram_entropy": entropy(token_counts),
        "machine": machine_info(),
        "world_size": world_size(),
        "micro_batch_size": micro_batch_size,
        "corpus": _describe_corpus(corpus),
        "started": previous.get("started", now()),
        "warnings": list(previous.get("warnings", [])),
    }


def describe_changes(previous: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Return a message if a run continues under conditions that change the rounding of sums."""
    before, after = ({**run_info.get("machine", {}), **run_info} for run_info in (previous, current))
    names = ("processor", "torch", "threads", "world_size", "sharded", "micro_batch_size")
    changes = [
        f"{name} {before[name]} → {after[name]}" for name in names if name in before and before[name] != after[name]
    ]
    return [f"continuing with {', '.join(changes)}: close, but not bit-identical"] if changes else []


def resolve_run_precision(precision: str, folder: Path, device: torch.device) -> tuple[str, str]:
    """Return the precision of a run, and a message; `auto` is what the run in `folder` began with, if there is one."""
    path = folder / "recipe.toml"
    previous = recipe_table(path).get("precision", AUTO) if path.is_file() else AUTO
    resolved = resolve_precision(previous if precision == AUTO else precision, device)
    return resolved, describe_precision(precision, resolved, None if previous == AUTO else previous)


def now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def count_tokens(corpus: Corpus, max_tokens: int = 20_000_000) -> npt.NDArray[np.int64]:
    """Return the frequency of each token, counted over about `max_tokens` tokens at most."""
    counts = np.zeros(corpus.tokenizer.vocab_size, dtype=np.int64)
    for shard in corpus.tokens_manifest["shards"]:
        arrays = open_shard(corpus.tokens_folder / shard["file"], shard["sha256"])
        counts += np.bincount(arrays.input_ids[:], minlength=len(counts))
        if counts.sum() > max_tokens:
            break
    return counts


def entropy(counts: npt.NDArray[np.int64]) -> float:
    """Return the entropy of a frequency table in nats: the loss of a unigram model."""
    probs = counts[counts > 0] / counts.sum()
    return float(-(probs * np.log(probs)).sum())


def unigram_entropy(corpus: Corpus) -> float:
    """Return the unigram entropy of a corpus in nats."""
    return entropy(count_tokens(corpus))


def _describe_corpus(corpus: Corpus) -> dict[str, Any]:
    return {
        "documents": corpus.manifest["documents"],
        "sentences": corpus.manifest["sentences"],
        "tokens": corpus.tokens_manifest["counts"]["tokens"],
        "vocabulary": f"{corpus.tokenizer.kind}, {corpus.tokenizer.vocab_size:,} tokens",
    }
