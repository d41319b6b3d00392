"""Time to transformers' loss: a data folder in, both held-out losses and the speedup out.

    python benchmarks/time_to_loss.py DATA_FOLDER [--minutes 5] [--precision auto|fp32|bf16] [--json]

On DATA_FOLDER/wikitext-2 (train and valid), mini, V = 8,192: transformers' BertForPreTraining is trained for the given
time with the recipe below; then ours for a third of that time and, if that is not enough, again for more of it. Ours is
run twice: `speedup_plain` starts from random weights as transformers does, `speedup` with the neighbor initialization
of our mini recipe (all else equal). Each is transformers' time divided by the time at which ours first reached its
held-out loss (0 if it never did). Both see the same examples in the same order and the same held-out ones; warmup and
decay follow each one's own time. Both train in the same precision (autocast; auto: bf16 where the processor multiplies
it natively, else fp32) and are evaluated in fp32.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import ModelInit, build
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.commands.run_info import count_tokens
from bertworks.commands.vocab import VocabularyRequest, train_vocabulary
from bertworks.corpus.corpus import Corpus
from bertworks.sampling.batch import Batch
from bertworks.text.sources import TextSource
from bertworks.training.devices import Precision
from bertworks.training.evaluation import evaluate
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import BertAdam
from bertworks.training.schedule import TimeSchedule
from bertworks.vocabulary.training import VocabularySettings
from hardware import resolve_precision
from timing import print_results, show_progress

RECIPE = PretrainRecipe(
    model=ModelRecipe(size="mini"),
    batch_size=32,
    learning_rate=1e-3,
    budget="5m",
    phases=(PhaseRecipe(128, budget_ratio=1.0),),
    num_eval_examples=512,
)
NEIGHBOR_INIT_RECIPE = replace(
    RECIPE, model=ModelRecipe(size="mini", position_init="neighbors", output_bias_init="unigram")
)
# Divisors of the peer's time that ours is given, one after another, until it reaches the peer's loss.
TIME_DIVISORS = (3.0, 2.5, 2.0, 1.5)
# When to evaluate, as parts of the time. Most are late, when the learning rate is low and the loss falls.
EVAL_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


def corpus_of(data: Path, work: Path) -> Corpus:
    """Prepare WikiText-2 with its own vocabulary; the validation part is held out."""
    train_text, valid = (next(iter(sorted((data / "wikitext-2").glob(f"*{name}*")))) for name in ("train", "valid"))
    train_vocabulary(
        VocabularyRequest((TextSource(str(train_text)),), work / "vocab"), VocabularySettings(vocab_size=8192)
    )
    sources = (TextSource(str(train_text)), TextSource(str(valid), split="held-out"))
    return Corpus.open(prepare(PrepareRequest(sources=sources, vocabulary=work / "vocab", output=work / "corpus")))


def make_schedule(seconds: float) -> TimeSchedule:
    return TimeSchedule(
        budget=seconds,
        phase_ratios=(1.0,),
        warmup_ratio=RECIPE.warmup_ratio,
        peak_learning_rate=RECIPE.learning_rate,
        history={},
    )


def peer_loss(corpus: Corpus, seconds: float, precision: Precision) -> tuple[float, int]:
    """Train transformers' model for the given time; return its held-out loss and its steps."""
    from transformers import BertConfig, BertForPreTraining

    config = RECIPE.model.config(corpus.tokenizer.vocab_size)
    torch.manual_seed(RECIPE.seed)
    peer_config = BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.layer_config.num_attention_heads,
        intermediate_size=config.layer_config.intermediate_size,
    )
    model = BertForPreTraining(peer_config).train()  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, eps=1e-6, weight_decay=0.01, fused=True)
    batches, schedule = PretrainBatches(corpus, RECIPE), make_schedule(seconds)
    elapsed = 0.0
    for step in itertools.count():
        schedule_step = schedule.at(step, elapsed)
        if schedule_step.phase is None:
            return _peer_held_out_loss(model, batches), step
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = schedule_step.learning_rate
        for batch in batches.get_batches(0, step):
            with precision.autocast():
                loss = _peer_output(model, batch).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        elapsed += time.perf_counter() - start
    raise AssertionError


def _peer_output(model: torch.nn.Module, batch: Batch) -> Any:
    assert batch.positions is not None
    assert batch.targets is not None
    columns = torch.arange(batch.input_ids.shape[1])
    labels = torch.full((batch.input_ids.numel(),), -100)
    labels[batch.positions] = batch.targets
    return model(
        input_ids=batch.input_ids,
        token_type_ids=batch.token_type_ids,
        attention_mask=(columns < batch.lengths[:, None]).long(),
        labels=labels.view_as(batch.input_ids),
        next_sentence_label=batch.labels["nsp"],
    )


@torch.no_grad()
def _peer_held_out_loss(model: torch.nn.Module, batches: PretrainBatches) -> float:
    model.eval()
    total, count = 0.0, 0
    for batch in batches.get_held_out_batches(0)[0]:
        assert batch.positions is not None
        assert batch.targets is not None
        logits = _peer_output(model, batch).prediction_logits.flatten(0, 1)[batch.positions]
        total += float(torch.nn.functional.cross_entropy(logits, batch.targets, reduction="sum"))
        count += len(batch.targets)
    return total / count


def our_losses(
    corpus: Corpus, recipe: PretrainRecipe, seconds: float, precision: Precision
) -> Iterator[tuple[float, float, int]]:
    """Train ours for the given time; yield (time spent in steps, held-out loss, steps) at each evaluation."""
    model_init = ModelInit(recipe.model.config(corpus.tokenizer.vocab_size), corpus.tokenizer)
    module, _ = build(model_init, recipe, count_tokens(corpus))
    batches, train_state = PretrainBatches(corpus, RECIPE), TrainState()
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, RECIPE.optimizer),
        schedule=make_schedule(seconds),
        get_batches=batches.get_batches,
        seed=RECIPE.seed,
        precision=precision,
    )
    ratios = iter((*EVAL_RATIOS, math.inf))
    ratio = next(ratios)
    for step in train(training, train_state):
        if step.seconds >= seconds * ratio:
            ratio = next(ratios)
            yield step.seconds, evaluate(module, batches.get_held_out_batches(0)[0]).losses["mlm"], step.number
    yield train_state.seconds, evaluate(module, batches.get_held_out_batches(0)[0]).losses["mlm"], train_state.step


def speedup(
    corpus: Corpus, recipe: PretrainRecipe, seconds: float, precision: Precision, target_loss: float
) -> dict[str, float]:
    """Return how much sooner than in `seconds` ours reaches the target loss, with its loss and steps."""
    for divisor in TIME_DIVISORS:
        for elapsed, loss, steps in our_losses(corpus, recipe, seconds / divisor, precision):
            if loss <= target_loss:
                return {"speedup": seconds / elapsed, "loss_ours": loss, "steps_ours": steps}
        show_progress(f"in 1/{divisor:g} of the time: {loss:.3f}, the peer {target_loss:.3f}")
    return {"speedup": 0.0, "loss_ours": loss, "steps_ours": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seconds, precision = 60 * options.minutes, Precision(resolve_precision(options.precision))
    with tempfile.TemporaryDirectory() as folder:
        corpus = corpus_of(options.data, Path(folder))
        target_loss, peer_steps = peer_loss(corpus, seconds, precision)
        show_progress(f"the peer in {precision.name}: {target_loss:.3f} after {peer_steps:,} steps")
        plain, neighbor_init = (
            speedup(corpus, recipe, seconds, precision, target_loss) for recipe in (RECIPE, NEIGHBOR_INIT_RECIPE)
        )
    results = {
        "precision": precision.name,
        "minutes": options.minutes,
        "loss_peer": target_loss,
        "steps_peer": peer_steps,
        **neighbor_init,
        **{f"{name}_plain": value for name, value in plain.items()},
    }
    print_results(results, options.json)


if __name__ == "__main__":
    main()
