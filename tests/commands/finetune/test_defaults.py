"""Defaults of fine-tuning follow from model and data: values by hand, a resumed run keeps its own."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from bertworks.commands.finetune.defaults import default_learning_rate, keep_run_values, resolve_defaults
from bertworks.commands.finetune.recipe import FinetuneRecipe, read_finetune_recipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.settings import recipe_path
from bertworks.training.optimizer import AdamSettings, LayerwiseSettings


@dataclass(frozen=True)
class Texts:
    texts: tuple[str, ...] = ("a text",)


def model(
    hidden_size: int = 256, dropout: float = 0.1, family_learning_rate: float = 0.0, optimizer: str = "adam"
) -> Any:
    """A stand-in for a model folder with weights."""
    return SimpleNamespace(
        tensors={"weight": None},
        metadata={"recipe": {"optimizer": {"name": optimizer}}},
        encoder_config=SimpleNamespace(hidden_size=hidden_size, hidden_dropout_prob=dropout),
        family=SimpleNamespace(learning_rate=family_learning_rate, model_type="bert"),
    )


def splits(num_train: int, num_dev: int = 0) -> dict[str, list[Texts]]:
    return {"train": [Texts()] * num_train, **({"dev": [Texts()] * num_dev} if num_dev else {})}


def resolve(recipe: FinetuneRecipe, num_train: int, num_dev: int = 0, **config: Any) -> FinetuneRecipe:
    return resolve_defaults(recipe, model(**config), splits(num_train, num_dev)).recipe


@pytest.mark.parametrize(
    ("hidden_size", "learning_rate"),
    [(64, 1e-3), (128, 1e-3), (256, 2.7e-4), (384, 1.2e-4), (512, 6.8e-5), (768, 3e-5), (1024, 1.7e-5)],
)
def test_the_learning_rate_falls_with_the_square_of_the_hidden_size(hidden_size: int, learning_rate: float):
    assert default_learning_rate(model(hidden_size)) == pytest.approx(learning_rate)


@pytest.mark.parametrize(("hidden_size", "learning_rate"), [(128, 1e-3), (256, 1e-3), (384, 4.8e-4), (768, 1.2e-4)])
def test_a_model_that_was_pretrained_with_muon_is_fine_tuned_with_it(hidden_size: int, learning_rate: float):
    recipe = resolve(FinetuneRecipe(), 100, hidden_size=hidden_size, optimizer="muon")
    assert (recipe.optimizer.name, recipe.learning_rate) == ("muon", pytest.approx(learning_rate))
    assert resolve(FinetuneRecipe(), 100).optimizer.name == "adam"
    assert resolve(FinetuneRecipe(), 20_000, optimizer="muon").optimizer.name == "adam"


@pytest.mark.parametrize(
    "recipe",
    [
        FinetuneRecipe(learning_rate=2.7e-4),  # a learning rate that is given is one of Adam
        FinetuneRecipe(feature_layers="last", learning_rate=1e-3),
        FinetuneRecipe(layerwise=LayerwiseSettings(layer_lr_decay=0.9)),  # Muon has one learning rate for all layers
        FinetuneRecipe(optimizer=AdamSettings()),
    ],
)
def test_adam_where_muon_cannot_or_should_not_be_used(recipe: FinetuneRecipe):
    assert resolve(recipe, 100, optimizer="muon").optimizer.name == "adam"


def test_other_settings_of_the_optimizer_leave_its_choice_to_the_model():
    recipe = read_finetune_recipe(None, {"optimizer.weight_decay": 0.1})
    assert (recipe.optimizer.name, recipe.optimizer.weight_decay) == ("auto", 0.1)
    resolved = resolve(recipe, 100, optimizer="muon")
    assert (resolved.optimizer.name, resolved.optimizer.weight_decay) == ("muon", 0.1)


def test_a_run_from_before_muon_continues_with_adam():
    recipe = keep_run_values(FinetuneRecipe(), {"optimizer": {"beta1": 0.9}, "learning_rate": 2.7e-4})
    assert recipe.optimizer == AdamSettings()


def test_a_family_and_a_frozen_model_have_learning_rates_of_their_own():
    assert resolve(FinetuneRecipe(), 100, family_learning_rate=0.01).learning_rate == 0.01
    assert resolve(FinetuneRecipe(feature_layers="last"), 100).learning_rate == 1e-3


@pytest.mark.parametrize(
    ("num_examples", "batch_size", "epochs"),
    [(50, 16, 30), (400, 16, 24), (1_000, 16, 10), (2_000, 32, 10), (6_000, 32, 4), (60_000, 32, 3)],
)
def test_few_examples_get_small_batches_and_many_epochs(num_examples: int, batch_size: int, epochs: int):
    recipe = resolve(FinetuneRecipe(), num_examples)
    assert (recipe.batch_size, recipe.epochs) == (batch_size, epochs)


@pytest.mark.parametrize(
    ("hidden_size", "num_examples", "epochs"),
    [
        (256, 6_000, 9),  # 1,692 steps
        (256, 30_000, 5),  # 5,000 steps at most
        (256, 60_000, 3),
        (384, 6_000, 6),
        (128, 6_000, 10),
        (768, 6_000, 4),  # 600 steps
        (256, 400, 24),
    ],
)
def test_narrow_models_with_a_dev_set_learn_for_longer(hidden_size: int, num_examples: int, epochs: int):
    assert resolve(FinetuneRecipe(), num_examples, num_dev=10, hidden_size=hidden_size).epochs == epochs


@pytest.mark.parametrize(("sequences_per_example", "epochs"), [(1.0, 9), (2.0, 7), (6.7, 3)])
def test_examples_of_many_sequences_get_fewer_epochs(sequences_per_example: float, epochs: int):
    examples = splits(10_142, num_dev=10)  # 317 steps an epoch
    resolution = resolve_defaults(FinetuneRecipe(), model(), examples, sequences_per_example=sequences_per_example)
    assert resolution.recipe.epochs == epochs


def test_r_drop_has_two_passes_an_epoch():
    recipe = FinetuneRecipe(r_drop=2.0)
    assert resolve(recipe, 10_000, num_dev=10, hidden_size=256).epochs == 4  # nine passes
    assert resolve(recipe, 10_000, num_dev=10, hidden_size=128).epochs == 5
    assert resolve(recipe, 400, num_dev=10, hidden_size=256).epochs == 24


def test_a_frozen_model_and_a_recurrent_family_do_not():
    assert resolve(FinetuneRecipe(feature_layers="last"), 6_000, num_dev=10).epochs == 4
    assert resolve(FinetuneRecipe(), 6_000, num_dev=10, family_learning_rate=0.01).epochs == 4


def test_few_symmetric_pairs_are_read_in_both_orders():
    def order(num_train: int, recipe: FinetuneRecipe, is_symmetric: bool = True) -> str:
        return resolve_defaults(recipe, model(), splits(num_train), is_symmetric=is_symmetric).recipe.pair_order

    assert order(5_000, FinetuneRecipe()) == "both"
    assert order(20_000, FinetuneRecipe()) == "given"
    assert order(5_000, FinetuneRecipe(pair_order="given")) == "given"
    assert order(5_000, FinetuneRecipe(), is_symmetric=False) == "given"


def test_few_examples_of_a_classifier_are_regularized_by_r_drop():
    def r_drop(num_train: int, recipe: FinetuneRecipe, can_r_drop: bool = True) -> float | None:
        return resolve_defaults(recipe, model(), splits(num_train), can_r_drop=can_r_drop).recipe.r_drop

    assert r_drop(19_999, FinetuneRecipe()) == 2.0
    assert r_drop(20_000, FinetuneRecipe()) == 0.0
    assert r_drop(10_000, FinetuneRecipe(pair_order="both")) == 0.0  # 20,000 sequences
    assert r_drop(100, FinetuneRecipe(), can_r_drop=False) == 0.0
    assert r_drop(100, FinetuneRecipe(dropout=0.0)) == 0.0
    assert r_drop(100, FinetuneRecipe(r_drop=0.0)) == 0.0
    assert r_drop(100, FinetuneRecipe(feature_layers="last")) == 0.0


def test_few_single_texts_teach_a_narrow_model_by_a_bag_of_words():
    def distill_weight(num_train: int, teacher_error: float | None = 0.11, **config: Any) -> float | None:
        examples = splits(num_train)
        return resolve_defaults(
            FinetuneRecipe(),
            model(**config),
            examples,
            teacher_error=None if teacher_error is None else lambda: teacher_error,
        ).recipe.distill_weight

    assert distill_weight(19_999) == 2.0
    assert distill_weight(20_000) == 0.0
    assert distill_weight(100, teacher_error=None) == 0.0
    assert distill_weight(100, teacher_error=0.1) == 0.0
    assert distill_weight(100, hidden_size=384) == 0.0
    assert distill_weight(100, family_learning_rate=0.01) == 0.0


@pytest.mark.parametrize(("name", "is_symmetric"), [("glue/STS-B", True), ("glue/RTE", False), ("", False)])
def test_what_is_known_of_a_published_dataset_tells_symmetric_pairs(name: str, is_symmetric: bool):
    request = FinetuneRequest(
        task="classify", model="m", train="t.tsv", output="o", settings={"set": name} if name else {}
    )
    assert request.is_symmetric == is_symmetric


def test_what_is_set_stays():
    recipe = FinetuneRecipe(
        learning_rate=1e-5,
        batch_size=8,
        epochs=2,
        dropout=0.3,
        evals_per_epoch=5.0,
        patience=0,
        warmup_ratio=0.2,
        pair_order="given",
        r_drop=0.0,
        distill_weight=0.0,
        optimizer=AdamSettings(),
    )
    resolution = resolve_defaults(recipe, model(dropout=0.0), splits(100, 50))
    assert resolution.recipe == recipe
    assert resolution.describe() == ""


def test_the_reasons_are_printed():
    assert resolve_defaults(FinetuneRecipe(), model(dropout=0.0), splits(400)).describe() == (
        "defaults for this model and data: learning_rate 0.00027 (hidden size 256); batch_size 16 (400 training "
        "examples); dropout 0.1 (the model was pretrained without); epochs 24 (600 steps)"
    )


def test_only_a_pretrained_transformer_without_dropout_gets_some():
    assert resolve(FinetuneRecipe(), 100, dropout=0.0).dropout == 0.1
    assert resolve(FinetuneRecipe(), 100, dropout=0.2).dropout is None
    assert resolve(FinetuneRecipe(), 100, dropout=0.0, family_learning_rate=0.01).dropout is None
    new_model = model(dropout=0.0)
    new_model.tensors = {}
    assert resolve_defaults(FinetuneRecipe(), new_model, splits(100)).recipe.dropout is None


@pytest.mark.parametrize(
    ("num_train", "num_dev", "evals_per_epoch"),
    [
        (60_000, 1_000, 3.0),  # 3 epochs: about ten evaluations
        (1_000, 100, 1.0),  # 10 epochs: one each
        (400, 1_200, 1 / 4),  # an evaluation is as expensive as an epoch: not after each
        (1_000, 0, 1.0),
    ],
)
def test_evaluations_are_about_ten_and_cheap(num_train: int, num_dev: int, evals_per_epoch: float):
    recipe = resolve(FinetuneRecipe(), num_train, num_dev)
    assert recipe.evals_per_epoch == pytest.approx(evals_per_epoch)


def test_a_resumed_run_keeps_its_values():
    table = {"learning_rate": 3e-5, "batch_size": 32, "epochs": 3, "evals_per_epoch": 1, "seed": 7}
    recipe = resolve_defaults(FinetuneRecipe(epochs=5), model(dropout=0.0), splits(400), table).recipe
    assert (recipe.learning_rate, recipe.batch_size, recipe.epochs, recipe.seed) == (3e-5, 32, 5, 0)
    assert (recipe.evals_per_epoch, recipe.dropout) == (1, None)  # it began without dropout
    assert keep_run_values(FinetuneRecipe(), {}) == FinetuneRecipe()


def test_the_paper_recipe_is_that_of_the_paper():
    recipe = read_finetune_recipe(recipe_path("paper", "finetune"), {})
    resolved = resolve(recipe, 400, 100, hidden_size=128, dropout=0.0)
    assert (resolved.batch_size, resolved.learning_rate, resolved.epochs) == (32, 3e-5, 3)
    assert (resolved.dropout, resolved.evals_per_epoch) == (0.1, 1.0)
