"""Recipes of comparisons: the built-in ones, budgets, what goes before what, and refusals; and steps by hand."""

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

MEMBER = MemberRecipe("one", recipe="tiny")


def test_budgets_as_people_write_them():
    assert parse_budget("800 steps") == Budget(800, "steps")
    assert parse_budget("5_000 steps") == Budget(5_000, "steps")
    assert parse_budget("2M pieces") == Budget(2e6, "pieces")
    assert parse_budget("1.5e12 flops") == Budget(1.5e12, "flops")
    assert parse_budget("1h30m") == Budget(5_400, "seconds")
    assert parse_budget("") == Budget()
    for wrong in ("many steps", "0 steps", "2 miles", "2M"):
        with pytest.raises(SettingsError):
            parse_budget(wrong)


@pytest.mark.parametrize("name", BUILTIN_RECIPES)
def test_every_built_in_comparison_is_read_and_only_lacks_what_a_person_has(name: str, tmp_path: Path):
    chosen = read_compare_recipe(name)
    assert len(chosen.seeds) >= 2
    with pytest.raises(SettingsError, match="--data"):
        chosen.check()
    with pytest.raises(SettingsError, match="--sets"):
        read_compare_recipe(name, {"corpus": tmp_path}).check()
    read_compare_recipe(name, {"corpus": tmp_path, "sets": tmp_path}).check()


def test_the_family_is_compared_at_one_size_length_and_batch():
    chosen = read_compare_recipe("family")
    assert [member.name for member in chosen.members] == ["BERT", "RoBERTa", "ALBERT", "GPT", "XLNet", "ELMo", "ULMFiT"]
    recipes = [chosen.pretrain_recipe(member, 3) for member in chosen.pretrained_members]
    assert {(one.model.size, one.batch_size, one.seed, one.phases[0].max_length) for one in recipes} == {
        ("mini", 32, 3, 128)
    }
    families = ["bert", "roberta", "albert", "openai-gpt", "xlnet", "elmo", "awd-lstm"]
    assert [one.model.family for one in recipes] == families


def test_the_ablations_are_the_paper_s():
    chosen = read_compare_recipe("ablations")
    found = [(one.name, chosen.pretrain_recipe(one, 0).objective) for one in chosen.pretrained_members]
    assert found == [
        ("BERT", "masked-next"),
        ("no next sentence", "masked"),
        ("left-to-right, no next sentence", "next"),
    ]
    assert {chosen.pretrain_recipe(one, 0).model.family for one in chosen.pretrained_members} == {"bert"}
    last = chosen.members[-1]
    assert last.base_member == "left-to-right, no next sentence"
    assert chosen.finetune_recipe(last, chosen.tasks[0], 0).head == "recurrent"
    assert [one.name for one in chosen.members_with_base(last.base_member)] == [last.base_member, last.name]


def test_the_six_mixes_of_masking_are_the_paper_s():
    chosen = read_compare_recipe("masking")
    found = {}
    for member in chosen.members:
        masking = chosen.pretrain_recipe(member, 0).masking
        same = 1 - masking.mask_replace_prob - masking.random_replace_prob
        found[member.name] = tuple(
            round(100 * share) for share in (masking.mask_replace_prob, same, masking.random_replace_prob)
        )
        assert masking.mask_prob == 0.15
    assert list(found) == ["80/10/10", "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100"]
    assert all("/".join(map(str, shares)) == name for name, shares in found.items())


def test_what_is_said_for_one_goes_before_what_is_said_for_all():
    member = MemberRecipe("one", "tiny", overrides={"model": {"dropout": 0.2}}, finetune={"epochs": 5})
    task = TaskRecipe("classify", finetune={"epochs": 4, "batch": 8})
    chosen = CompareRecipe(
        (member,), (task,), overrides={"model": {"dropout": 0.0, "num_layers": 3}, "rate": 2e-3}, finetune={"batch": 16}
    )
    recipe = chosen.pretrain_recipe(member, 7)
    assert (recipe.model.hidden_dropout_prob, recipe.model.num_hidden_layers, recipe.learning_rate, recipe.seed) == (
        0.2,
        3,
        2e-3,
        7,
    )
    tuning = chosen.finetune_recipe(member, task, 7)
    assert (tuning.epochs, tuning.batch_size, tuning.seed) == (5, 8, 7)
    # And what is said on the command line goes before all of it.
    narrowed = chosen.with_overrides((), (), {"model": {"dropout": 0.3}}, {"truncate": True})
    assert narrowed.pretrain_recipe(narrowed.members[0], 0).model.hidden_dropout_prob == 0.3
    assert narrowed.finetune_recipe(narrowed.members[0], task, 0).truncate


def test_some_members_and_other_tasks_can_be_asked_for():
    chosen = read_compare_recipe("ablations").with_overrides(["glue/CoLA"], ["the same with a BiLSTM"], {}, {})
    assert [one.name for one in chosen.members] == ["left-to-right, no next sentence", "the same with a BiLSTM"]
    assert [task.title for task in chosen.tasks] == ["glue/CoLA"]
    with pytest.raises(SettingsError, match="no member 'T5'; choose one of: BERT"):
        chosen = read_compare_recipe("family").with_overrides([], ["T5"], {}, {})


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"members": ()}, "at least one member"),
        ({"members": (MEMBER, MEMBER)}, "'one' is there twice"),
        (
            {"members": (MEMBER, MemberRecipe("two", base_member="three"))},
            "like 'three', which has no recipe; choose: one",
        ),
        ({"seeds": ()}, "one seed"),
        ({"measured_at": (0.5, 0.2)}, "has to rise"),
        ({"measured_at": (0.5, 2.0)}, "from above 0 to 1.0"),
        ({"measured_at": (0.5, 1.0), "budget": "3m"}, "count steps or pieces"),
    ],
)
def test_comparisons_that_cannot_be_are_refused(told: dict, message: str):
    with pytest.raises(SettingsError, match=message):
        CompareRecipe(**{"members": (MEMBER,), **told})


def test_members_need_a_recipe_or_one_they_are_like():
    with pytest.raises(SettingsError, match="needs either a recipe"):
        MemberRecipe("one")
    with pytest.raises(SettingsError, match="changes and vocabulary belong there"):
        MemberRecipe("two", base_member="one", overrides={"rate": 1.0})


def test_an_unknown_setting_of_a_member_is_named_before_anything_runs(tmp_path: Path):
    wrong = CompareRecipe(
        (MemberRecipe("one", "tiny", overrides={"ratee": 1.0}),),
        (TaskRecipe("glue/MRPC"),),
        corpus=tmp_path,
        sets=tmp_path,
    )
    with pytest.raises(SettingsError, match="member 'one', recipe tiny: there is no key 'ratee'; did you mean 'rate'"):
        wrong.check()


def test_names_become_folders():
    assert folder_name("80/10/10") == "80-10-10"
    assert folder_name("left-to-right, no next sentence") == "left-to-right-no-next-sentence"
    assert folder_name("汉字 BERT") == "汉字-BERT"


def test_steps_of_phases_and_warm_up_by_hand():
    """Of 100 steps seven tenths and three tenths; a twentieth to warm up."""
    found = set_total_steps(replace(RECIPE, warmup_ratio=0.05), 100)
    assert found.phases == (PhaseRecipe(16, 70, 0.7), PhaseRecipe(32, 30, 0.3))
    assert (found.warmup_steps, found.budget) == (5, "")
    assert [phase.steps for phase in set_total_steps(RECIPE, 2).phases] == [1, 1]


def test_budgets_of_pieces_and_operations_last_as_many_steps(tmp_path: Path):
    corpus = Corpus.open(prepare_corpus(tmp_path))
    short, long = tokens_per_step(RECIPE, corpus)
    assert 8 * 8 < short <= 8 * 16 < long <= 8 * 32  # eight rows, of at most 16 and 32 pieces
    mean = 0.7 * short + 0.3 * long
    assert sum(one.steps for one in fit_recipe_to_budget(RECIPE, Budget(50 * mean, "pieces"), corpus).phases) == 50
    cost = cost_of(RECIPE, corpus)
    mean = 0.7 * cost.flops[0] + 0.3 * cost.flops[1]
    assert sum(one.steps for one in fit_recipe_to_budget(RECIPE, Budget(30 * mean, "flops"), corpus).phases) == 30
    assert cost_of(replace(RECIPE, batch_size=16), corpus).flops[0] == pytest.approx(2 * cost.flops[0], rel=0.1)
    assert fit_recipe_to_budget(RECIPE, Budget(90, "seconds"), corpus).budget == "90s"
    assert fit_recipe_to_budget(RECIPE, Budget(), corpus) == RECIPE
