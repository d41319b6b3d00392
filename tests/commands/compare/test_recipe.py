"""Comparison recipes: the built-in ones, budgets, precedence of settings, validation; and steps worked out by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_run import RECIPE, prepare_corpus

from bertworks.commands.compare.cost import cost_of, fit_recipe_to_budget, set_total_steps, tokens_per_step
from bertworks.commands.compare.recipe import (
    BUILTIN_RECIPES,
    Budget,
    CompareRecipe,
    MemberRecipe,
    TaskRecipe,
    folder_name,
    parse_budget,
    read_compare_recipe,
)
from bertworks.commands.pretrain.recipe import PhaseRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.errors import SettingsError

MEMBER = MemberRecipe(name="one", recipe="tiny")


def test_budget_is_parsed():
    assert parse_budget("800 steps") == Budget(800, "steps")
    assert parse_budget("5_000 steps") == Budget(5_000, "steps")
    assert parse_budget("2M tokens") == Budget(2e6, "tokens")
    assert parse_budget("1.5e12 flops") == Budget(1.5e12, "flops")
    assert parse_budget("1h30m") == Budget(5_400, "seconds")
    assert parse_budget("") == Budget()
    for text in ("many steps", "0 steps", "2 miles", "2M"):
        with pytest.raises(SettingsError):
            parse_budget(text)


@pytest.mark.parametrize("name", BUILTIN_RECIPES)
def test_built_in_comparison_needs_only_a_corpus_and_datasets(name: str, tmp_path: Path):
    comparison = read_compare_recipe(name)
    assert len(comparison.seeds) >= 2
    with pytest.raises(SettingsError, match="--data"):
        comparison.check()
    with pytest.raises(SettingsError, match="--sets"):
        read_compare_recipe(name, {"corpus": tmp_path}).check()
    read_compare_recipe(name, {"corpus": tmp_path, "sets": tmp_path}).check()


def test_family_is_compared_at_one_size_length_and_batch_size():
    comparison = read_compare_recipe("family")
    assert [member.name for member in comparison.members] == [
        "BERT",
        "RoBERTa",
        "ALBERT",
        "GPT",
        "XLNet",
        "ELMo",
        "ULMFiT",
    ]
    recipes = [comparison.pretrain_recipe(member, 3) for member in comparison.pretrained_members]
    assert {(recipe.model.size, recipe.batch_size, recipe.seed, recipe.phases[0].max_length) for recipe in recipes} == {
        ("mini", 32, 3, 128)
    }
    families = ["bert", "roberta", "albert", "openai-gpt", "xlnet", "elmo", "awd-lstm"]
    assert [recipe.model.family for recipe in recipes] == families


def test_ablations_are_the_paper_s():
    comparison = read_compare_recipe("ablations")
    members = comparison.pretrained_members
    assert [(member.name, comparison.pretrain_recipe(member, 0).objective) for member in members] == [
        ("BERT", "mlm-nsp"),
        ("No NSP", "mlm"),
        ("LTR & No NSP", "causal"),
    ]
    assert {comparison.pretrain_recipe(member, 0).model.family for member in members} == {"bert"}
    last = comparison.members[-1]
    assert last.base_member == "LTR & No NSP"
    assert comparison.finetune_recipe(last, comparison.tasks[0], 0).head == "recurrent"
    assert [member.name for member in comparison.members_with_base(last.base_member)] == [last.base_member, last.name]


def test_masking_strategies_are_the_paper_s():
    comparison = read_compare_recipe("masking")
    percentages = {}
    for member in comparison.members:
        masking = comparison.pretrain_recipe(member, 0).masking
        unchanged = 1 - masking.mask_replace_prob - masking.random_replace_prob
        probs = (masking.mask_replace_prob, unchanged, masking.random_replace_prob)
        percentages[member.name] = "/".join(str(round(100 * prob)) for prob in probs)
        assert masking.mask_prob == 0.15
    assert list(percentages) == ["80/10/10", "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100"]
    assert all(value == name for name, value in percentages.items())


def test_settings_of_a_member_take_precedence():
    member = MemberRecipe(
        name="one", recipe="tiny", pretrain={"model": {"hidden_dropout_prob": 0.2}}, finetune={"epochs": 5}
    )
    task = TaskRecipe(task="classify", finetune={"epochs": 4, "batch_size": 8})
    comparison = CompareRecipe(
        members=(member,),
        tasks=(task,),
        pretrain={"model": {"hidden_dropout_prob": 0.0, "num_hidden_layers": 3}, "learning_rate": 2e-3},
        finetune={"batch_size": 16},
    )
    recipe = comparison.pretrain_recipe(member, 7)
    assert (recipe.model.hidden_dropout_prob, recipe.model.num_hidden_layers) == (0.2, 3)
    assert (recipe.learning_rate, recipe.seed) == (2e-3, 7)
    finetune_recipe = comparison.finetune_recipe(member, task, 7)
    assert (finetune_recipe.epochs, finetune_recipe.batch_size, finetune_recipe.seed) == (5, 8, 7)
    # Assignments of the command line take precedence over all of it.
    changed = comparison.with_overrides((), (), ["pretrain.model.hidden_dropout_prob=0.3", "finetune.truncate=true"])
    assert changed.pretrain_recipe(changed.members[0], 0).model.hidden_dropout_prob == 0.3
    assert changed.finetune_recipe(changed.members[0], task, 0).truncate


def test_unknown_override_suggests_the_nearest_setting():
    comparison = read_compare_recipe("ablations")
    with pytest.raises(SettingsError, match=r"no setting 'pretrain\.lr'; did you mean 'pretrain\.learning_rate'"):
        comparison.with_overrides((), (), ["pretrain.lr=1e-3"])


def test_members_and_tasks_can_be_selected():
    comparison = read_compare_recipe("ablations").with_overrides(["glue/CoLA"], ["LTR & No NSP + BiLSTM"], [])
    assert [member.name for member in comparison.members] == ["LTR & No NSP", "LTR & No NSP + BiLSTM"]
    assert [task.title for task in comparison.tasks] == ["glue/CoLA"]
    with pytest.raises(SettingsError, match="no member 'T5'; choose one of: BERT"):
        read_compare_recipe("family").with_overrides([], ["T5"], [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": ()}, "at least one member"),
        ({"members": (MEMBER, MEMBER)}, "'one' is not a unique name"),
        (
            {"members": (MEMBER, MemberRecipe(name="two", base_member="three"))},
            "'three', which has no recipe; choose one of: one",
        ),
        ({"seeds": ()}, "one seed"),
        ({"eval_ratios": (0.5, 0.2)}, "must increase"),
        ({"eval_ratios": (0.5, 2.0)}, "above 0, up to 1.0"),
        ({"eval_ratios": (0.5, 1.0), "budget": "3m"}, "need a budget in steps, tokens or flops"),
    ],
)
def test_invalid_comparison_is_refused(settings: dict, message: str):
    with pytest.raises(SettingsError, match=message):
        CompareRecipe(**{"members": (MEMBER,), **settings})


def test_member_needs_a_recipe_or_a_base_member():
    with pytest.raises(SettingsError, match="needs either a recipe"):
        MemberRecipe(name="one")
    with pytest.raises(SettingsError, match="set pretrain and vocabulary there"):
        MemberRecipe(name="two", base_member="one", pretrain={"learning_rate": 1.0})


def test_unknown_setting_of_a_member_is_refused_before_anything_runs(tmp_path: Path):
    comparison = CompareRecipe(
        members=(MemberRecipe(name="one", recipe="tiny", pretrain={"learning_ratee": 1.0}),),
        tasks=(TaskRecipe(task="glue/MRPC"),),
        corpus=tmp_path,
        sets=tmp_path,
    )
    message = "member 'one', recipe tiny: there is no key 'learning_ratee'; did you mean 'learning_rate'"
    with pytest.raises(SettingsError, match=message):
        comparison.check()


def test_names_become_folder_names():
    assert folder_name("80/10/10") == "80-10-10"
    assert folder_name("LTR & No NSP + BiLSTM") == "LTR-No-NSP-+-BiLSTM"
    assert folder_name("汉字 BERT") == "汉字-BERT"


def test_steps_of_phases_and_warmup():
    """Of 100 steps 70 % and 30 %; 5 % are warmup."""
    recipe = set_total_steps(replace(RECIPE, warmup_ratio=0.05), 100)
    assert recipe.phases == (PhaseRecipe(16, steps=70, budget_ratio=0.7), PhaseRecipe(32, steps=30, budget_ratio=0.3))
    assert (recipe.warmup_steps, recipe.budget) == (5, "")
    assert [phase.steps for phase in set_total_steps(RECIPE, 2).phases] == [1, 1]


def test_budgets_in_tokens_and_flops_determine_the_steps(tmp_path: Path):
    corpus = Corpus.open(prepare_corpus(tmp_path))
    short, long = tokens_per_step(RECIPE, corpus)
    assert 8 * 8 < short <= 8 * 16 < long <= 8 * 32  # eight sequences of at most 16 and 32 tokens
    mean = 0.7 * short + 0.3 * long
    assert sum(phase.steps for phase in fit_recipe_to_budget(RECIPE, Budget(50 * mean, "tokens"), corpus).phases) == 50
    cost = cost_of(RECIPE, corpus)
    mean = 0.7 * cost.flops[0] + 0.3 * cost.flops[1]
    assert sum(phase.steps for phase in fit_recipe_to_budget(RECIPE, Budget(30 * mean, "flops"), corpus).phases) == 30
    assert cost_of(replace(RECIPE, batch_size=16), corpus).flops[0] == pytest.approx(2 * cost.flops[0], rel=0.1)
    assert fit_recipe_to_budget(RECIPE, Budget(90, "seconds"), corpus).budget == "90s"
    assert fit_recipe_to_budget(RECIPE, Budget(), corpus) == RECIPE


def test_costs_of_phases_follow_their_own_batch_sizes(tmp_path: Path):
    corpus = Corpus.open(prepare_corpus(tmp_path))
    phases = (PhaseRecipe(16, steps=6, batch_size=24, mask_prob=0.3), PhaseRecipe(16, steps=6))
    recipe = replace(RECIPE, phases=phases)
    large, small = tokens_per_step(recipe, corpus)
    assert large == pytest.approx(3 * small, rel=0.1)
    large, small = cost_of(recipe, corpus).flops
    assert large == pytest.approx(3 * small, rel=0.2)
    assert set_total_steps(recipe, 24).phases == tuple(replace(phase, steps=12) for phase in phases)
