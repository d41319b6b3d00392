"""The models of `pretraining.py --family`: a recipe in, batches and a module of ours or of transformers out.

Sequences of 128 random tokens, V = 30,522, with the targets of the recipe's objective. ELMo and AWD-LSTM have no
counterpart in transformers; ELMo is measured with each kind of softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.electra import ElectraConfig
from bertworks.encoders.families import architecture_of, family_of
from bertworks.objectives.registry import OBJECTIVES
from bertworks.objectives.rtd import DISCRIMINATOR_WEIGHT
from bertworks.sampling.batch import Batch
from bertworks.settings import read_recipe, recipe_path
from bertworks.tasks.module import TaskModule
from bertworks.tasks.translate import Translate

VOCAB_SIZE, LENGTH, BATCH_SIZE = 30_522, 128, 32
# Ids below the first are special tokens of some family; the id of [MASK] is the same for all.
FIRST_ID, MASK_ID = 1_000, 103
# The arguments of transformers' forward for one of our batches.
PeerInputs = Callable[[Batch], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Member:
    """A recipe, its batches, and the inputs of transformers' model (None: transformers has no such model).

    `family` replaces that of the recipe.
    """

    recipe: str
    make_batch: Callable[[torch.Generator], Batch]
    peer_inputs: PeerInputs | None = None
    softmax_kind: str | None = None
    family: str = ""

    def config(self) -> EncoderConfig:
        model = read_recipe(recipe_path(self.recipe), PretrainRecipe).model
        model = replace(model, family=self.family or model.family, softmax_kind=self.softmax_kind)
        return replace(model, max_position_embeddings=LENGTH).config(VOCAB_SIZE)

    def module(self) -> torch.nn.Module:
        """Return the module that our loop trains."""
        generator, config = torch.Generator().manual_seed(0), self.config()
        encoder = family_of(config.model_type).build(config, generator)
        if hasattr(encoder, "spelling"):  # words of eight characters
            encoder.spelling[:, :8].random_(2, 100, generator=generator)  # type: ignore[index]
        return OBJECTIVES[read_recipe(recipe_path(self.recipe), PretrainRecipe).objective].build(encoder, generator)

    def peer(self) -> torch.nn.Module:
        """Return transformers' model with the same config."""
        import transformers

        config = self.config()
        objective = read_recipe(recipe_path(self.recipe), PretrainRecipe).objective
        heads = {"mlm": "mlm", "mlm-sop": "pretraining", "causal": "causal", "permutation": "permutation"}
        family = family_of(config.model_type)
        keys = {**dict.fromkeys(family.special_ids, 0), **family.config_to_dict(config, [])}
        peer_config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
        model: torch.nn.Module = getattr(transformers, architecture_of(config, heads[objective]))(peer_config)
        return model


class Detector(Member):
    """ELECTRA: transformers has both models, and their training step is written here, as in the paper."""

    __slots__ = ()

    def peer(self) -> torch.nn.Module:
        config = self.config()
        assert isinstance(config, ElectraConfig)
        return ReplacedTokenDetection(config)


class ReplacedTokenDetection(torch.nn.Module):
    """transformers' generator and discriminator with shared embeddings: inputs of a masked LM in, the loss out."""

    generator: Any
    detector: Any

    def __init__(self, config: ElectraConfig) -> None:
        import transformers

        super().__init__()
        peers: list[Any] = []
        for size, kind in ((config.generator_config, "mlm"), (config, "rtd")):
            keys = family_of("electra").config_to_dict(size, [])
            peer_config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
            peers.append(getattr(transformers, architecture_of(size, kind))(peer_config))
        self.generator, self.detector = peers
        embeddings = self.detector.electra.embeddings
        self.generator.electra.embeddings = embeddings
        self.generator.generator_lm_head.weight = embeddings.word_embeddings.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return an object with the loss."""
        outputs = self.generator(input_ids=input_ids, labels=labels)
        is_masked = labels != -100
        with torch.no_grad():
            logits = outputs.logits[is_masked].float()
            noise = -torch.log(torch.empty_like(logits).exponential_())  # Gumbel
            samples = (logits + noise).argmax(-1)
        replaced_ids = input_ids.masked_scatter(is_masked, samples)
        is_replaced = torch.zeros_like(labels).masked_scatter(is_masked, (samples != labels[is_masked]).long())
        detector_loss = self.detector(input_ids=replaced_ids, labels=is_replaced).loss
        outputs.loss = outputs.loss + DISCRIMINATOR_WEIGHT * detector_loss
        return outputs


class Translator(Member):
    """The Transformer, which is trained as a task: half of the tokens of a sequence are the source, half the target."""

    __slots__ = ()

    def config(self) -> EncoderConfig:
        model = read_recipe(recipe_path(self.recipe, "finetune"), FinetuneRecipe).model
        assert model is not None
        return model.config(VOCAB_SIZE)

    def module(self) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(0)
        encoder = family_of("marian").build(self.config(), generator)
        return TaskModule(encoder, Translate(smoothing=0.0), generator)

    def peer(self) -> torch.nn.Module:
        import transformers

        keys = family_of("marian").config_to_dict(self.config(), [])
        special_ids = {"pad_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0}
        return transformers.MarianMTModel(transformers.MarianConfig(**{**keys, **special_ids}))


def random_ids(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(FIRST_ID, VOCAB_SIZE, (BATCH_SIZE, LENGTH), generator=generator)


def random_positions(ratio: float, generator: torch.Generator) -> torch.Tensor:
    """Return flat positions (B * k): the same number in each sequence."""
    count = round(ratio * LENGTH)
    columns = torch.stack(
        [torch.randperm(LENGTH, generator=generator)[:count].sort().values for _ in range(BATCH_SIZE)]
    )
    return (columns + torch.arange(BATCH_SIZE)[:, None] * LENGTH).flatten()


def make_batch(input_ids: torch.Tensor, **fields: Any) -> Batch:
    lengths = torch.full((BATCH_SIZE,), input_ids.shape[1])
    return Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=lengths, **fields)


def with_next_token_targets(input_ids: torch.Tensor, **fields: Any) -> Batch:
    """Return a batch whose targets are the next token of each position."""
    positions = torch.arange(input_ids.numel()).view_as(input_ids)[:, :-1].flatten()
    return make_batch(input_ids, positions=positions, targets=input_ids[:, 1:].flatten(), **fields)


def mlm_batch(generator: torch.Generator, mask_prob: float = 0.15) -> Batch:
    input_ids, positions = random_ids(generator), random_positions(mask_prob, generator)
    targets = input_ids.flatten()[positions]
    input_ids.view(-1)[positions] = MASK_ID
    labels = {"nsp": torch.randint(0, 2, (BATCH_SIZE,), generator=generator)}
    return make_batch(input_ids, positions=positions, targets=targets, labels=labels)


def causal_batch(generator: torch.Generator) -> Batch:
    return with_next_token_targets(random_ids(generator))


def permutation_batch(generator: torch.Generator) -> Batch:
    input_ids, positions = random_ids(generator), random_positions(1 / 6, generator)
    order = torch.zeros(BATCH_SIZE * LENGTH, dtype=torch.int64)
    count = len(positions) // BATCH_SIZE
    order[positions] = torch.stack(
        [torch.randperm(count, generator=generator) + 1 for _ in range(BATCH_SIZE)]
    ).flatten()
    targets = input_ids.flatten()[positions]
    return make_batch(input_ids, positions=positions, targets=targets, permutation=order.view(BATCH_SIZE, LENGTH))


def translation_batch(generator: torch.Generator) -> Batch:
    source_ids, input_ids = random_ids(generator).chunk(2, 1)
    return with_next_token_targets(input_ids, source=make_batch(source_ids))


def mlm_inputs(batch: Batch) -> dict[str, Any]:
    assert batch.positions is not None
    assert batch.targets is not None
    labels = torch.full((batch.input_ids.numel(),), -100)
    labels[batch.positions] = batch.targets
    return {"input_ids": batch.input_ids, "labels": labels.view_as(batch.input_ids)}


def sop_inputs(batch: Batch) -> dict[str, Any]:
    return {**mlm_inputs(batch), "sentence_order_label": batch.labels["nsp"]}


def causal_inputs(batch: Batch) -> dict[str, Any]:
    return {"input_ids": batch.input_ids, "labels": batch.input_ids}


def translation_inputs(batch: Batch) -> dict[str, Any]:
    assert batch.source is not None
    labels = torch.cat([batch.input_ids[:, 1:], torch.full((BATCH_SIZE, 1), -100)], 1)
    return {"input_ids": batch.source.input_ids, "decoder_input_ids": batch.input_ids, "labels": labels}


def permutation_inputs(batch: Batch) -> dict[str, Any]:
    """Return a permutation as XLNet takes it: which positions each may not attend to, and which are predicted."""
    assert batch.permutation is not None
    assert batch.positions is not None
    assert batch.targets is not None
    order = batch.permutation
    perm_mask = (order[:, None, :] >= order[:, :, None]) & (order[:, None, :] > 0)
    perm_mask |= (order[:, :, None] == 0) & (order[:, None, :] > 0)
    positions = (batch.positions % LENGTH).view(BATCH_SIZE, -1)
    mapping = torch.nn.functional.one_hot(positions, LENGTH).float()  # (B, k, T)
    labels = batch.targets.view(BATCH_SIZE, -1)
    return {"input_ids": batch.input_ids, "perm_mask": perm_mask.float(), "target_mapping": mapping, "labels": labels}


MEMBERS = {
    "roberta": Member("roberta", mlm_batch, mlm_inputs),
    **{
        name: Member("roberta", mlm_batch, mlm_inputs, family=name)
        for name in ("xlm-roberta", "camembert", "ernie", "distilbert", "mpnet", "deberta-v2")
    },
    "modernbert": Member("modernbert", partial(mlm_batch, mask_prob=0.3), mlm_inputs),
    "electra": Detector("electra", mlm_batch, mlm_inputs),
    "albert": Member("albert", mlm_batch, sop_inputs),
    "gpt": Member("gpt", causal_batch, causal_inputs),
    "xlnet": Member("xlnet", permutation_batch, permutation_inputs),
    "transformer": Translator("transformer", translation_batch, translation_inputs),
    "elmo_adaptive": Member("elmo", causal_batch, softmax_kind="adaptive"),
    "elmo_sampled": Member("elmo", causal_batch, softmax_kind="sampled"),
    "elmo_full": Member("elmo", causal_batch, softmax_kind="full"),
    "ulmfit": Member("ulmfit", causal_batch),
}


def make_batches(name: str, count: int) -> list[Batch]:
    """Return batches of a member."""
    generator = torch.Generator().manual_seed(1)
    return [MEMBERS[name].make_batch(generator) for _ in range(count)]
