"""The recommendation, on a machine whose speed is known: every number of a plan can be worked out by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from known_speed import KnownSpeed
from small_run import prepare_corpus

from bertworks.commands.plan import run as plan_module
from bertworks.commands.plan.forecast import effective_tokens, forecast_loss, step_flops
from bertworks.commands.plan.run import CorpusSummary, Plan, PlanRequest, plan, summarize_corpus
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.corpus.units import PrepareSettings
from bertworks.encoders.bert import BertConfig
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.settings import read_recipe, to_toml
from bertworks.text.sources import TextSource
from bertworks.training.memory import step_bytes

LOTS = 2**40
# Text without end and with long documents, so that nothing but speed decides.
ENDLESS = CorpusSummary(8192, 10**12, "masked-next", 1.0, math.log(8192), 6.5)
Make = Callable[..., Plan]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("plan"))


@pytest.fixture
def make(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that plans on a machine and a text that are known."""

    def plan_for(
        budget: str, text: CorpusSummary = ENDLESS, speed: KnownSpeed | None = None, memory: int = LOTS
    ) -> Plan:
        monkeypatch.setattr(plan_module, "summarize_corpus", lambda corpus: text)
        return plan(PlanRequest(corpus, budget, memory=memory), speed or KnownSpeed())

    return plan_for


def test_steps_pieces_and_epochs_follow_from_the_speed(make: Make):
    # mini takes 16 * 0.004 + 0.1 = 0.164 s a step of 16 examples of 0.9 * 128 pieces.
    mini = make("30m", replace(ENDLESS, num_tokens=10_000_000)).candidates[1]
    assert (mini.size, mini.batch_size, mini.steps) == ("mini", 16, 10_975)
    assert mini.num_tokens == pytest.approx(10_975 * 16 * 115.2)
    assert mini.epochs == pytest.approx(mini.num_tokens / 10_000_000)
    useful = effective_tokens(mini.num_tokens, 10_000_000)
    assert mini.loss == forecast_loss(BertConfig.from_preset("mini", 8192), useful, 6.5, "neighbours")


def test_the_size_with_the_lowest_forecast_loss_is_chosen(make: Make):
    for budget in ("10m", "2h", "10d"):
        found = make(budget)
        chosen = min((one for one in found.candidates if not one.reason), key=lambda one: one.loss.middle)
        assert found.recipe.model.size == chosen.size


def test_more_time_means_a_larger_model(make: Make):
    order = ["tiny", "mini", "small", "medium", "base"]
    chosen = [order.index(make(budget).recipe.model.size) for budget in ("5m", "2h", "2d", "100d")]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_the_batch_is_the_largest_that_leaves_ten_thousand_steps(make: Make):
    # A step of tiny: 0.116 s for 16 examples, 0.132 for 32, 0.164 for 64, 0.228 for 128, 0.356 for 256.
    batches = {
        budget: make(budget).candidates[0].batch_size for budget in ("2m", "1310s", "1330s", "1650s", "1h", "10d")
    }
    assert batches == {"2m": 16, "1310s": 16, "1330s": 32, "1650s": 64, "1h": 256, "10d": 256}


def test_a_size_that_could_not_win_at_the_full_rate_is_not_measured(make: Make):
    # At this rate base would do 1,000 steps of 16 in an hour if it lost no time at all.
    base = BertConfig.from_preset("base", 8192)
    speed = KnownSpeed(rate=1000.5 * step_flops(base, 16, 128) / 3600)
    found = make("1h", speed=speed)
    assert "base" not in [size for size, _ in speed.asked]
    assert found.candidates[-1].reason.startswith("not tried: at the full rate")
    assert found.candidates[-1].steps == 1000


def test_only_the_chosen_size_is_measured_at_512(make: Make):
    speed = KnownSpeed()
    found = make("2h", speed=speed)
    assert [asked for asked in speed.asked if asked[1] == 512] == [(found.recipe.model.size, 512)]


def test_trials_together_take_less_than_a_minute(make: Make):
    speed = KnownSpeed()
    make("10d", speed=speed)
    assert len(speed.trials) == 6
    assert sum(trial.seconds for trial in speed.trials) < 60


def test_long_documents_give_long_rows_a_tenth_of_the_time(make: Make):
    found = make("6h")
    assert [(phase.max_length, phase.budget_ratio) for phase in found.recipe.phases] == [(128, 0.9), (512, 0.1)]
    # mini: 256 * 0.004 + 0.1 = 1.124 s a step at 128, 256 * 0.02 + 0.1 = 5.22 s at 512; 19,440 s and 2,160 s of them.
    assert (found.recipe.model.size, found.recipe.batch_size) == ("mini", 256)
    assert [phase.steps for phase in found.recipe.phases] == [17_295, 413]
    assert found.num_tokens == pytest.approx(256 * 0.9 * (17_295 * 128 + 413 * 512))


def test_half_as_many_long_documents_give_long_rows_half_as_much(make: Make):
    assert make("10d", replace(ENDLESS, long_document_ratio=0.5)).recipe.phases[1].budget_ratio == 0.05


def test_short_documents_give_no_long_rows(make: Make):
    speed = KnownSpeed()
    found = make("1d", replace(ENDLESS, long_document_ratio=0.1), speed)
    assert [phase.max_length for phase in found.recipe.phases] == [128]
    assert found.recipe.phases[0].budget_ratio == 1.0
    assert (found.recipe.model.size, 512) not in speed.asked
    assert any("10% of the pieces stand in documents of 512" in reason for reason in found.reasons)


def test_a_short_budget_leaves_no_time_for_long_rows(make: Make):
    # A tenth of five minutes is 30 s, which are 71 steps of 16 rows of mini at 512, each of 16 * 0.02 + 0.1 s.
    found = make("5m")
    assert [phase.max_length for phase in found.recipe.phases] == [128]
    assert any("71 steps at 512, fewer than 300" in reason for reason in found.reasons)


def test_warmup_is_a_tenth_of_a_short_run_and_the_papers_steps_of_a_long_one(make: Make):
    short, long = make("30m"), make("1000d")
    assert short.recipe.warmup_ratio == 0.1
    assert short.recipe.warmup_steps == short.steps // 10
    assert long.steps > 1_000_000
    assert long.recipe.warmup_steps == pytest.approx(10_000, rel=0.02)


def test_scores_and_checkpoints_come_a_sensible_number_of_times(make: Make):
    for budget in ("2m", "2h", "2d"):
        found = make(budget)
        assert 1 <= found.steps / found.recipe.eval_steps <= 60
        assert found.recipe.eval_steps >= 100
        assert found.recipe.save_steps <= found.steps


def test_what_does_not_fit_is_computed_in_micro_batches_or_not_chosen(make: Make):
    mini, base = (BertConfig.from_preset(size, 8192) for size in ("mini", "base"))
    memory = int(step_bytes(mini, 16, 512) / 0.8) + 1000
    assert step_bytes(base, 1, 128) > 0.8 * memory
    found = make("6h", memory=memory)
    assert found.recipe.model.size == "mini"
    assert (found.recipe.batch_size, found.recipe.micro_batch_size) == (256, 16)
    assert found.memory == step_bytes(mini, 16, 512)
    assert found.candidates[-1].reason == "does not fit into memory"
    assert any("micro-batches of 16" in reason for reason in found.reasons)


def test_more_epochs_than_the_papers_are_pointed_out(make: Make):
    assert any("more text would help" in reason for reason in make("2h", replace(ENDLESS, num_tokens=500_000)).reasons)
    assert not any("more text would help" in reason for reason in make("2h").reasons)


def test_values_are_dropped_only_where_text_is_seen_often(make: Make):
    fresh = make("2h")
    assert (fresh.epochs < 4, fresh.recipe.model.hidden_dropout_prob) == (True, 0.0)
    stale = make("2h", replace(ENDLESS, num_tokens=10_000_000))
    assert (stale.epochs > 4, stale.recipe.model.hidden_dropout_prob) == (True, 0.1)


def test_the_recipe_reads_back_as_it_was(make: Make, tmp_path: Path):
    for budget in ("5m", "1h30m", "1000000s"):
        found = make(budget)
        (tmp_path / "plan.toml").write_text(to_toml(found.recipe), encoding="utf-8")
        assert read_recipe(tmp_path / "plan.toml", PretrainRecipe) == found.recipe
        assert found.recipe.budget == budget


@pytest.mark.parametrize("budget", ["", "soon", "0s"])
def test_a_budget_that_is_none_is_refused(corpus: Path, budget: str):
    with pytest.raises(SettingsError, match=r"budget 2h|is no duration"):
        plan(PlanRequest(corpus, budget), KnownSpeed())


def test_a_budget_too_short_for_the_smallest_size_is_refused_with_one_that_is_not(make: Make):
    # tiny: 0.116 s a step, so 300 steps take 34.8 s
    with pytest.raises(SettingsError, match=r"20s is too short here: even tiny, .* 172 steps .* --budget 1m"):
        make("20s")
    assert make("40s").recipe.model.size == "tiny"
    assert make("1m").recipe.model.size == "mini"  # 0.164 s a step: 365 of them


def test_too_little_memory_for_the_smallest_size_is_refused(make: Make):
    with pytest.raises(SettingsError, match=r"even tiny, the smallest size, needs .* GiB"):
        make("2h", memory=2**20)


def test_a_folder_that_is_no_corpus_is_refused(tmp_path: Path):
    with pytest.raises(FolderError, match="not yet, a prepared corpus"):
        plan(PlanRequest(tmp_path, "2h"), KnownSpeed())


def test_a_real_corpus_is_looked_at_and_planned_for(corpus: Path):
    found = plan(PlanRequest(corpus, "2h", memory=LOTS), KnownSpeed())
    opened = Corpus.open(corpus)
    assert found.corpus_summary == summarize_corpus(opened)
    assert found.corpus_summary.num_tokens == opened.split("train").num_tokens
    assert found.corpus_summary.objective == "masked-next"
    assert found.corpus_summary.long_document_ratio == 0.0  # documents of six short sentences
    assert [phase.max_length for phase in found.recipe.phases] == [128]


def prepared(folder: Path, lines: str, held_out_rate: float = 0.2) -> Corpus:
    (folder / "text.txt").write_text(lines, encoding="utf-8")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\nthe\nriver\nstone\n", encoding="utf-8")
    settings = PrepareSettings(held_out_ratio=held_out_rate)
    request = PrepareRequest((TextSource(str(folder / "text.txt")),), folder / "vocab.txt", folder / "corpus", settings)
    return Corpus.open(prepare(request, 1))


def test_documents_of_one_sentence_are_planned_without_pairs(tmp_path: Path):
    lines = "\n\n".join(f"The river {'stone ' * number}the river the stone the river." for number in range(1, 40))
    assert summarize_corpus(prepared(tmp_path, lines)).objective == "masked"


def test_a_corpus_without_held_out_text_is_refused_before_anything_is_measured(tmp_path: Path):
    lines = "\n\n".join(f"The river {'stone ' * number}the river.\nThe stone the river." for number in range(1, 9))
    corpus = prepared(tmp_path, lines, held_out_rate=0.0)
    speed = KnownSpeed()
    with pytest.raises(InputError, match="held-out"):
        plan(PlanRequest(corpus.folder, "2h"), speed)
    assert speed.trials == []
