"""Pretraining steps of ours and of transformers: a size of BERT or another family in, a function that does a step out.

Batches have sequences of 128 random tokens (V = 30,522) of which 15 % are masked. bf16 is autocast on both sides: fp32
parameters and optimizer state.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.objectives.mlm import MlmModule
from bertworks.sampling.batch import Batch
from bertworks.training.devices import Precision
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from family_steps import MEMBERS, mlm_inputs
from family_steps import make_batches as family_batches
from timing import seconds_of

VOCAB_SIZE = 30_522
LENGTH = 128
BATCH_SIZES = {"tiny": 32, "mini": 32, "small": 32, "medium": 32, "base": 8, "large": 4}
NUM_BATCHES = 4


def make_batches(batch_size: int, count: int) -> list[Batch]:
    """Return batches of random tokens with 15 % of the positions masked."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    num_masked = round(0.15 * (LENGTH - 3))
    for _ in range(count):
        input_ids = torch.randint(1000, VOCAB_SIZE, (batch_size, LENGTH), generator=generator)
        token_type_ids = (torch.arange(LENGTH) >= LENGTH // 2).long().expand(batch_size, LENGTH).contiguous()
        columns = torch.stack(
            [torch.randperm(LENGTH, generator=generator)[:num_masked].sort().values for _ in range(batch_size)]
        )
        positions = (columns + torch.arange(batch_size)[:, None] * LENGTH).flatten()
        targets = input_ids.flatten()[positions]
        input_ids.view(-1)[positions] = 103
        batches.append(
            Batch(
                input_ids=input_ids,
                token_type_ids=token_type_ids,
                lengths=torch.full((batch_size,), LENGTH),
                positions=positions,
                targets=targets,
                labels={"nsp": torch.randint(0, 2, (batch_size,), generator=generator)},
            )
        )
    return batches


def our_module(size: str, compiled: bool) -> Any:
    """Return the module that our loop trains: a BERT of that size, or another model family."""
    if size in MEMBERS:
        return MEMBERS[size].module()
    generator = torch.Generator().manual_seed(0)
    module = MlmModule(Bert(BertConfig.from_preset(size, VOCAB_SIZE), generator), generator)
    if compiled:
        for layer in module.encoder.layers:
            layer.compile(dynamic=False)
    return module


def our_step(module: Any, batches: list[Batch], precision: str) -> Callable[[], object]:
    """Return a function that does one step of our loop."""
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((10**6,), 10_000, 1e-4),
        get_batches=lambda phase, step: [batches[step % len(batches)]],
        seed=0,
        precision=Precision(precision),
    )
    steps = train(training, TrainState())
    return lambda: next(steps, None)


def peer_model(size: str) -> tuple[Any, Callable[[Batch], dict[str, Any]]]:
    """Return transformers' model, and the function that makes its inputs from a batch."""
    if size in MEMBERS:
        peer_inputs = MEMBERS[size].peer_inputs
        assert peer_inputs is not None
        return MEMBERS[size].peer(), peer_inputs
    import transformers

    config = BertConfig.from_preset(size, VOCAB_SIZE)
    peer_config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
    )
    return transformers.BertForPreTraining(peer_config), _bert_inputs  # type: ignore[no-untyped-call]


def _bert_inputs(batch: Batch) -> dict[str, Any]:
    return {
        **mlm_inputs(batch),
        "token_type_ids": batch.token_type_ids,
        "attention_mask": torch.ones_like(batch.input_ids),
        "next_sentence_label": batch.labels["nsp"],
    }


def peer_step(size: str, batches: list[Batch], precision: str) -> Callable[[], None]:
    """Return a function that does one step of transformers' model in a plain loop."""
    model, make_inputs = peer_model(size)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)
    numbers = itertools.count()

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**make_inputs(batches[next(numbers) % len(batches)])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def answer_requests(side: str, size: str, precision: str, compiled: bool) -> None:
    """Do a step for each line `step` and print its seconds; at `memory`, print by how many MiB the peak grew."""
    batches = family_batches(size, NUM_BATCHES) if size in MEMBERS else make_batches(BATCH_SIZES[size], NUM_BATCHES)
    if side == "peer":
        import transformers.models.bert.modeling_bert  # noqa: F401
    before = peak_mib()
    if side == "ours":
        step = our_step(our_module(size, compiled), batches, precision)
    else:
        step = peer_step(size, batches, precision)
    for line in sys.stdin:
        print(peak_mib() - before if line.strip() == "memory" else seconds_of(step), flush=True)


def peak_mib() -> float:
    """Return the peak resident size of this process. (getrusage would include the parent's before the fork.)"""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
