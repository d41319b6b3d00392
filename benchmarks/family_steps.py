"""The members for `pretraining.py --family`: a recipe in, batches and one step of ours or of transformers' out.

Rows of random pieces, length 128, V = 30,522; what is asked of them is what the recipe's objective asks. ELMo and
AWD-LSTM have no counterpart in transformers; an ELMo is measured with each way of scoring its whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.encoders.families import architecture_of, family_of
from bertworks.encoders.stack import BertConfig
from bertworks.objectives.registry import OBJECTIVES
from bertworks.sampling.batch import Batch
from bertworks.settings import read_recipe, recipe_path
from bertworks.tasks.module import TaskModule
from bertworks.tasks.translate import Translate

VOCABULARY, LENGTH, ROWS = 30_522, 128, 32
# Pieces below are special ones somewhere; the one that stands for a hidden piece is the same to all.
FIRST, MASK = 1_000, 103
Asked = Callable[[Batch], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Member:
    """A recipe, its batches, and how transformers' class is asked the same (None: it has no such class)."""

    recipe: str
    batches: Callable[[torch.Generator], Batch]
    asked: Asked | None = None
    scoring: str | None = None

    def sizes(self) -> BertConfig:
        model = read_recipe(recipe_path(self.recipe), PretrainRecipe).model
        return replace(model, max_position_embeddings=LENGTH, softmax_kind=self.scoring).config(VOCABULARY)

    def module(self) -> torch.nn.Module:
        """Return what our loop trains."""
        generator, sizes = torch.Generator().manual_seed(0), self.sizes()
        encoder = family_of(sizes.model_type).build(sizes, generator)
        if hasattr(encoder, "spelling"):  # words of eight letters
            encoder.spelling[:, :8].random_(2, 100, generator=generator)  # type: ignore[index]
        return OBJECTIVES[read_recipe(recipe_path(self.recipe), PretrainRecipe).objective](encoder, generator)

    def peer(self) -> torch.nn.Module:
        """Return transformers' model of the same sizes."""
        import transformers

        sizes = self.sizes()
        objective = read_recipe(recipe_path(self.recipe), PretrainRecipe).objective
        kinds = {"masked": "masked", "masked-order": "masked and pair", "next": "next", "permuted": "permuted"}
        told = family_of(sizes.model_type).config_to_dict(sizes, [])
        config = transformers.AutoConfig.for_model(told.pop("model_type"), **told)
        found: torch.nn.Module = getattr(transformers, architecture_of(sizes, kinds[objective]))(config)
        return found


class Translator(Member):
    """The Transformer, which learns as a task: half of the pieces of a row are its source, half its target."""

    __slots__ = ()

    def sizes(self) -> BertConfig:
        model = read_recipe(recipe_path(self.recipe, "finetune"), FinetuneRecipe).model
        assert model is not None
        return model.config(VOCABULARY)

    def module(self) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(0)
        encoder = family_of("marian").build(self.sizes(), generator)
        return TaskModule(encoder, Translate(smoothing=0.0), generator)

    def peer(self) -> torch.nn.Module:
        import transformers

        told = family_of("marian").config_to_dict(self.sizes(), [])
        special = {"pad_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0}
        return transformers.MarianMTModel(transformers.MarianConfig(**{**told, **special}))


def rows(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(FIRST, VOCABULARY, (ROWS, LENGTH), generator=generator)


def chosen(share: float, generator: torch.Generator) -> torch.Tensor:
    """Return (B * k,): as many places of each row, counted through the batch."""
    count = round(share * LENGTH)
    each = torch.stack([torch.randperm(LENGTH, generator=generator)[:count].sort().values for _ in range(ROWS)])
    return (each + torch.arange(ROWS)[:, None] * LENGTH).flatten()


def batch_of(ids: torch.Tensor, **told: Any) -> Batch:
    return Batch(ids, torch.zeros_like(ids), torch.full((ROWS,), ids.shape[1]), **told)


def continued(ids: torch.Tensor, **told: Any) -> Batch:
    """Return rows that are asked at each place for the piece behind it."""
    places = torch.arange(ids.numel()).view_as(ids)[:, :-1].flatten()
    return batch_of(ids, places=places, targets=ids[:, 1:].flatten(), **told)


def masked(generator: torch.Generator) -> Batch:
    ids, places = rows(generator), chosen(0.15, generator)
    targets = ids.flatten()[places]
    ids.view(-1)[places] = MASK
    labels = {"pair": torch.randint(0, 2, (ROWS,), generator=generator)}
    return batch_of(ids, places=places, targets=targets, labels=labels)


def following(generator: torch.Generator) -> Batch:
    return continued(rows(generator))


def permuted(generator: torch.Generator) -> Batch:
    ids, places = rows(generator), chosen(1 / 6, generator)
    order = torch.zeros(ROWS * LENGTH, dtype=torch.int64)
    each = len(places) // ROWS
    order[places] = torch.stack([torch.randperm(each, generator=generator) + 1 for _ in range(ROWS)]).flatten()
    return batch_of(ids, places=places, targets=ids.flatten()[places], permutation=order.view(ROWS, LENGTH))


def translated(generator: torch.Generator) -> Batch:
    source, ids = rows(generator).chunk(2, 1)
    return continued(ids, source=batch_of(source))


def ask_masked(batch: Batch) -> dict[str, Any]:
    assert batch.positions is not None
    assert batch.targets is not None
    labels = torch.full((batch.input_ids.numel(),), -100)
    labels[batch.positions] = batch.targets
    return {"input_ids": batch.input_ids, "labels": labels.view_as(batch.input_ids)}


def ask_order(batch: Batch) -> dict[str, Any]:
    return {**ask_masked(batch), "sentence_order_label": batch.labels["pair"]}


def ask_following(batch: Batch) -> dict[str, Any]:
    return {"input_ids": batch.input_ids, "labels": batch.input_ids}


def ask_translated(batch: Batch) -> dict[str, Any]:
    assert batch.source is not None
    labels = torch.cat([batch.input_ids[:, 1:], torch.full((ROWS, 1), -100)], 1)
    return {"input_ids": batch.source.input_ids, "decoder_input_ids": batch.input_ids, "labels": labels}


def ask_permuted(batch: Batch) -> dict[str, Any]:
    """Return XLNet's own way to say an order: who may not be read by whom, and which places are asked."""
    assert batch.permutation is not None
    assert batch.positions is not None
    assert batch.targets is not None
    order = batch.permutation
    hidden = (order[:, None, :] >= order[:, :, None]) & (order[:, None, :] > 0)
    hidden |= (order[:, :, None] == 0) & (order[:, None, :] > 0)
    places = (batch.positions % LENGTH).view(ROWS, -1)
    mapping = torch.nn.functional.one_hot(places, LENGTH).float()  # (B, k, T)
    labels = batch.targets.view(ROWS, -1)
    return {"input_ids": batch.input_ids, "perm_mask": hidden.float(), "target_mapping": mapping, "labels": labels}


MEMBERS = {
    "roberta": Member("roberta", masked, ask_masked),
    "albert": Member("albert", masked, ask_order),
    "gpt": Member("gpt", following, ask_following),
    "xlnet": Member("xlnet", permuted, ask_permuted),
    "transformer": Translator("transformer", translated, ask_translated),
    "elmo_adaptive": Member("elmo", following, scoring="adaptive"),
    "elmo_sampled": Member("elmo", following, scoring="sampled"),
    "elmo_full": Member("elmo", following, scoring="full"),
    "ulmfit": Member("ulmfit", following),
}


def batches_of(name: str, count: int) -> list[Batch]:
    """Return the batches of a member."""
    generator = torch.Generator().manual_seed(1)
    return [MEMBERS[name].batches(generator) for _ in range(count)]
