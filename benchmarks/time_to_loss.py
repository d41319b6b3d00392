"""How soon do we know what transformers knows? A data folder in, both held-out losses and the speed-up out.

    python benchmarks/time_to_loss.py DATA_FOLDER [--minutes 5] [--json]

On DATA_FOLDER/wikitext-2 (train and valid), mini, V = 8,192: transformers' BertForPreTraining trains for the given time
with the recipe below; then ours trains by it for a third of that time, and, if that is not enough, anew for more of it.
Ours is tried twice: `speedup_plain` begins with random weights as the other does, `speedup` with the head start of our
mini recipe (other first weights, all else equal). Each is the other's time against the moment at which ours had first
reached its held-out loss (0 if it never did). Both meet the same examples in the same order and the same held-out ones;
warm-up and decay follow each one's own clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import ModelInit, build
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.commands.run_info import count_tokens
from bertworks.commands.vocab import VocabularyRequest, train_vocabulary
from bertworks.corpus.corpus import Corpus
from bertworks.text.sources import TextSource
from bertworks.training.evaluation import evaluate
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import BertAdam
from bertworks.training.schedule import TimeSchedule
from bertworks.vocabulary.training import VocabularySettings

RECIPE = PretrainRecipe(
    model=ModelRecipe(size="mini"),
    batch_size=32,
    learning_rate=1e-3,
    budget="5m",
    phases=(PhaseRecipe(128, budget_ratio=1.0),),
    num_eval_examples=512,
)
HEAD_START = replace(RECIPE, model=ModelRecipe(size="mini", position_init="neighbours", output_bias_init="counts"))
# Parts of the peer's time that ours is given, one after the other, until it has reached the peer's loss.
PARTS = (3.0, 2.5, 2.0, 1.5)
# When held-out text is looked at, in shares of the time. Most looks come late, when the rate is low and the loss falls.
LOOKS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


def corpus_of(data: Path, work: Path) -> Corpus:
    """Prepare WikiText-2 with a vocabulary of its own; its validation part is held out."""
    train_text, valid = (next(iter(sorted((data / "wikitext-2").glob(f"*{name}*")))) for name in ("train", "valid"))
    train_vocabulary(
        VocabularyRequest((TextSource(str(train_text)),), work / "vocab"), VocabularySettings(vocab_size=8192)
    )
    sources = (TextSource(str(train_text)), TextSource(str(valid), split="held-out"))
    return Corpus.open(prepare(PrepareRequest(sources, work / "vocab", work / "corpus")))


def pace_of(seconds: float) -> TimeSchedule:
    return TimeSchedule(
        budget=seconds,
        phase_ratios=(1.0,),
        warmup_ratio=RECIPE.warmup_ratio,
        peak_learning_rate=RECIPE.learning_rate,
        history={},
    )


def peer_loss(corpus: Corpus, seconds: float) -> tuple[float, int]:
    """Train transformers' model for the given time; return its held-out loss and its steps."""
    from transformers import BertConfig, BertForPreTraining

    sizes = RECIPE.model.config(corpus.tokenizer.vocab_size)
    torch.manual_seed(RECIPE.seed)
    config = BertConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        intermediate_size=sizes.intermediate_size,
    )
    model = BertForPreTraining(config).train()  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, eps=1e-6, weight_decay=0.01, fused=True)
    rows, pace = PretrainBatches(corpus, RECIPE), pace_of(seconds)
    spent = 0.0
    for number in itertools.count():
        moment = pace.at(number, spent)
        if moment.phase is None:
            return _peer_held_out(model, rows), number
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = moment.learning_rate
        for batch in rows.get_batches(0, number):
            _peer_output(model, batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        spent += time.perf_counter() - start
    raise AssertionError


def _peer_output(model: torch.nn.Module, batch):  # type: ignore[no-untyped-def]
    places = torch.arange(batch.ids.shape[1])
    labels = torch.full((batch.ids.numel(),), -100)
    labels[batch.places] = batch.targets
    return model(
        input_ids=batch.ids,
        token_type_ids=batch.segments,
        attention_mask=(places < batch.lengths[:, None]).long(),
        labels=labels.view_as(batch.ids),
        next_sentence_label=batch.labels["pair"],
    )


@torch.no_grad()
def _peer_held_out(model: torch.nn.Module, rows: PretrainBatches) -> float:
    model.eval()
    total, count = 0.0, 0
    for batch in rows.get_held_out_batches(0)[0]:
        assert batch.positions is not None
        assert batch.targets is not None
        scores = _peer_output(model, batch).prediction_logits.flatten(0, 1)[batch.positions]
        total += float(torch.nn.functional.cross_entropy(scores, batch.targets, reduction="sum"))
        count += len(batch.targets)
    return total / count


def our_losses(corpus: Corpus, recipe: PretrainRecipe, seconds: float) -> Iterator[tuple[float, float, int]]:
    """Train ours for the given time; yield (time spent in steps, held-out loss, steps) at all looks."""
    module, _ = build(
        ModelInit(recipe.model.config(corpus.tokenizer.vocab_size), corpus.tokenizer), recipe, count_tokens(corpus)
    )
    rows, standing = PretrainBatches(corpus, RECIPE), TrainState()
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, RECIPE.optimizer),
        schedule=pace_of(seconds),
        get_batches=rows.get_batches,
        seed=RECIPE.seed,
    )
    looks = iter((*LOOKS, math.inf))
    look = next(looks)
    for step in train(training, standing):
        if step.seconds >= seconds * look:
            look = next(looks)
            yield step.seconds, evaluate(module, rows.get_held_out_batches(0)[0]).losses["masked"], step.number
    yield standing.seconds, evaluate(module, rows.get_held_out_batches(0)[0]).losses["masked"], standing.step


def speedup(corpus: Corpus, recipe: PretrainRecipe, seconds: float, wanted: float) -> dict[str, float]:
    """Return how much sooner than in `seconds` ours reaches the wanted loss, with that loss and the steps it took."""
    for part in PARTS:
        for spent, loss, steps in our_losses(corpus, recipe, seconds / part):
            if loss <= wanted:
                return {"speedup": seconds / spent, "loss_ours": loss, "steps_ours": steps}
        print(f"in 1/{part:g} of the time: {loss:.3f}, the peer {wanted:.3f}", file=sys.stderr, flush=True)
    return {"speedup": 0.0, "loss_ours": loss, "steps_ours": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seconds = 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        corpus = corpus_of(options.data, Path(folder))
        wanted, peer_steps = peer_loss(corpus, seconds)
        plain, started = (speedup(corpus, recipe, seconds, wanted) for recipe in (RECIPE, HEAD_START))
    told = {
        "loss_peer": wanted,
        "steps_peer": peer_steps,
        **started,
        **{f"{name}_plain": value for name, value in plain.items()},
    }
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in told.items()}))
        return
    for name, value in told.items():
        print(f"{value:12.3f}  {name}")


if __name__ == "__main__":
    main()
