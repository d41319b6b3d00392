"""Fine-tuning recipes: window rules, schedules and target metrics by hand, invalid settings; verdicts by hand."""

import numpy as np
import pytest
import torch

from bertworks.commands.finetune.recipe import FinetuneRecipe, parse_target_metric
from bertworks.commands.finetune.verdict import verdict_of
from bertworks.encoders.families import family_of
from bertworks.errors import SettingsError
from bertworks.objectives.causal import CausalLmModule
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import TaskScores
from bertworks.tasks.module import TaskModule
from bertworks.training.optimizer import AdamSettings, BertAdam, LayerwiseSettings, freeze, parameter_depths
from bertworks.training.schedule import SlantedTriangularSchedule


def test_the_window_rule_is_the_default_of_the_task_unless_set():
    default = WindowRule(384, 96)
    assert FinetuneRecipe().window_rule(default, 512) == WindowRule(384, 96)
    assert FinetuneRecipe().window_rule(default, 64) == WindowRule(64, 16)
    assert FinetuneRecipe(max_length=128, overlap=8, truncate=True).window_rule(default, 512) == WindowRule(
        128, 8, truncate=True
    )


def test_the_slanted_triangular_schedule_by_hand():
    """Ten steps, a fifth of them warmup, peak 32, ratio 32: from 1 to 32 in two steps, then down by 31/8 per step."""
    schedule = SlantedTriangularSchedule(10, 0.2, 32.0)
    learning_rates = [schedule.at(step, 0.0).learning_rate for step in range(10)]
    assert learning_rates[:3] == pytest.approx([1.0, 16.5, 32.0])
    assert learning_rates[9] == pytest.approx(32 - 7 * 31 / 8)
    assert schedule.at(10, 0.0).phase is None


def depths_of_tiny(family: str, num_layers: int) -> dict[str, int]:
    encoders = family_of(family)
    with torch.device("meta"):
        encoder = encoders.build(encoders.config_from_preset("tiny", 50).resized(num_hidden_layers=num_layers), None)
        module = TaskModule(encoder, Classify(labels=("no", "yes")))
    return parameter_depths(module)


def test_a_shared_layer_has_the_depth_of_the_last_one():
    depths = depths_of_tiny("albert", 4)
    assert {depth for name, depth in depths.items() if name.startswith("encoder.layers.")} == {4}
    assert [
        depths[name]
        for name in ("encoder.token_embeddings.weight", "encoder.embedding_projection.weight", "head.score.bias")
    ] == [0, 0, 5]


def test_learning_rates_by_depth():
    depths = depths_of_tiny("bert", 4)
    assert [depths[f"encoder.{name}.bias"] for name in ("norm", "layers.0.norm", "layers.3.intermediate")] == [0, 1, 4]
    assert [depths[name] for name in ("encoder.pooler.bias", "head.score.weight")] == [5, 5]
    slow = LayerwiseSettings(layer_lr_decay=0.5)
    assert [slow.factor(below, 0) for below in (0, 1, 3)] == [1.0, 0.5, 0.125]
    gradual = LayerwiseSettings(unfreeze_steps=10)
    assert [gradual.factor(1, step) for step in (9, 10)] == [0.0, 1.0]
    assert [gradual.factor(2, step) for step in (19, 20)] == [0.0, 1.0]
    fast = LayerwiseSettings(layer_lr_decay=0.5, embedding_lr_ratio=6.0)
    assert [fast.factor(3, 0, is_embedding) for is_embedding in (False, True)] == [0.125, 0.75]
    with pytest.raises(SettingsError, match="embedding_lr_ratio is 0; it must be above 0"):
        LayerwiseSettings(embedding_lr_ratio=0)


def test_layers_unfreeze_over_a_ratio_of_the_run():
    half = LayerwiseSettings(unfreeze_ratio=0.5)
    assert half.resolve(80, 3) == LayerwiseSettings(unfreeze_steps=10)  # three layers and the embeddings by step 40
    assert half.resolve(2, 3).unfreeze_steps == 1
    assert LayerwiseSettings(unfreeze_steps=7).resolve(80, 3) == LayerwiseSettings(unfreeze_steps=7)
    with pytest.raises(SettingsError, match="exclude each other; set only one"):
        LayerwiseSettings(unfreeze_steps=5, unfreeze_ratio=0.5)
    with pytest.raises(SettingsError, match="the second from 0 to 1"):
        LayerwiseSettings(unfreeze_ratio=1.5)


def test_without_a_head_the_last_layer_has_the_full_learning_rate():
    module = CausalLmModule(family_of("awd-lstm").build(family_of("awd-lstm").config_from_preset("tiny", 20), None))
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    layerwise = LayerwiseSettings(layer_lr_decay=0.5)
    freeze(module, layerwise)  # the pooler, which the objective does not use
    optimizer = BertAdam(module, AdamSettings(weight_decay=0.0, clip=0.0), layerwise)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimizer.step(0.01)
    updates = {name: float((before[name] - parameter.detach()).max()) for name, parameter in module.named_parameters()}
    names = (
        "encoder.layers.2.weight_hh",
        "encoder.layers.0.bias",
        "encoder.token_embeddings.weight",
        "encoder.pooler.weight",
    )
    assert [updates[name] for name in names] == pytest.approx([0.01, 0.0025, 0.00125, 0.0], rel=1e-3)


def test_target_metrics():
    assert parse_target_metric("accuracy=0.9") == ("accuracy", 0.9)
    assert parse_target_metric("") is None
    with pytest.raises(SettingsError, match=r"write it as accuracy=0\.9"):
        parse_target_metric("accuracy>0.9")
    with pytest.raises(SettingsError, match=r"never reached: metrics are at most 1; write it as accuracy=0\.9"):
        parse_target_metric("accuracy=90")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": -1}, "batch_size is -1; it must be above 0, or 0 for the default"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0; give a number above 0"),
        ({"schedule": "cosine"}, "no schedule 'cosine'; choose one of: linear, slanted-triangular"),
        ({"precision": "fp8"}, "no precision 'fp8'"),
        ({"warmup_ratio": 1.0}, "warmup_ratio is 1.0; it must be at least 0 and below 1"),
        ({"mlm_weight": -1.0}, "mlm_weight is -1.0; it must not be negative"),
        ({"r_drop": -1.0}, "r_drop is -1.0; it must be at least 0"),
        ({"distill_weight": float("nan")}, "distill_weight is nan; it must be at least 0"),
        ({"r_drop": 1.0, "dropout": 0.0}, "r_drop compares two dropout masks, but dropout is 0"),
        ({"mlm_weight": 1.0, "lm_weight": 1.0}, "choose one auxiliary loss"),
    ],
)
def test_invalid_settings_are_refused(settings: dict, message: str):
    with pytest.raises(SettingsError, match=message):
        FinetuneRecipe(**settings)


@pytest.mark.parametrize(
    ("train", "dev", "verdict"),
    [(0.95, 0.93, "fits"), (0.99, 0.85, "overfits"), (0.6, 0.58, "underfits"), (0.42, 0.2, "underfits")],
)
def test_verdicts(train: float, dev: float, verdict: str):
    scores = {
        "train": TaskScores(metrics={"f1": train}, main_metric="f1"),
        "dev": TaskScores(metrics={"f1": dev}, main_metric="f1"),
    }
    assert verdict_of("f1", scores).startswith(f"{verdict}: f1 is {train:.3f} on train and {dev:.3f} on dev")


def test_a_collapsed_model_underfits_despite_a_high_score():
    details = {"confusion": np.array([[92, 0], [8, 0]]), "labels": ("ham", "spam")}
    scores = {
        split: TaskScores(metrics={"accuracy": 0.92}, main_metric="accuracy", details=details)
        for split in ("train", "dev")
    }
    assert verdict_of("accuracy", scores).startswith(
        "underfits: accuracy is 0.920 on train and 0.920 on dev, and one class"
    )


def test_without_dev_the_verdict_asks_for_it():
    assert "give one with --dev" in verdict_of("f1", {"train": TaskScores(metrics={"f1": 1.0}, main_metric="f1")})
