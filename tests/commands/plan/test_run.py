"""The recommended recipe on a machine with known speed: every number of a plan can be worked out by hand."""

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

LARGE_MEMORY = 2**40
# An endless corpus of long documents, so that only speed matters.
ENDLESS = CorpusSummary(
    vocab_size=8192,
    num_tokens=10**12,
    objective="mlm-nsp",
    long_document_ratio=1.0,
    uniform_loss=math.log(8192),
    unigram_entropy=6.5,
)
MakePlan = Callable[..., Plan]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("plan"))


@pytest.fixture
def make_plan(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> MakePlan:
    """Return a function that plans for a known machine and corpus."""

    def plan_for(
        budget: str, summary: CorpusSummary = ENDLESS, speed: KnownSpeed | None = None, memory: int = LARGE_MEMORY
    ) -> Plan:
        monkeypatch.setattr(plan_module, "summarize_corpus", lambda corpus: summary)
        return plan(PlanRequest(corpus, budget, memory=memory), speed or KnownSpeed())

    return plan_for


def test_steps_tokens_and_epochs_follow_from_the_speed(make_plan: MakePlan):
    # mini takes 16 * 0.004 + 0.1 = 0.164 s for a step of 16 sequences of 0.9 * 128 tokens.
    mini = make_plan("30m", replace(ENDLESS, num_tokens=10_000_000)).candidates[1]
    assert (mini.size, mini.batch_size, mini.steps) == ("mini", 16, 10_975)
    assert mini.num_tokens == pytest.approx(10_975 * 16 * 115.2)
    assert mini.epochs == pytest.approx(mini.num_tokens / 10_000_000)
    effective = effective_tokens(mini.num_tokens, 10_000_000)
    assert mini.loss == forecast_loss(BertConfig.from_preset("mini", 8192), effective, 6.5, "neighbors")


def test_size_with_the_lowest_forecast_loss_is_chosen(make_plan: MakePlan):
    for budget in ("10m", "2h", "10d"):
        result = make_plan(budget)
        possible = [candidate for candidate in result.candidates if not candidate.reason]
        best = min(possible, key=lambda candidate: candidate.loss.middle)
        assert result.recipe.model.size == best.size


def test_longer_budget_gives_a_larger_model(make_plan: MakePlan):
    sizes = ["tiny", "mini", "small", "medium", "base"]
    chosen = [sizes.index(make_plan(budget).recipe.model.size) for budget in ("5m", "2h", "2d", "100d")]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_batch_size_is_the_largest_that_leaves_ten_thousand_steps(make_plan: MakePlan):
    # A step of tiny: 0.116 s for 16 examples, 0.132 for 32, 0.164 for 64, 0.228 for 128, 0.356 for 256.
    batch_sizes = {
        budget: make_plan(budget).candidates[0].batch_size for budget in ("2m", "1310s", "1330s", "1650s", "1h", "10d")
    }
    assert batch_sizes == {"2m": 16, "1310s": 16, "1330s": 32, "1650s": 64, "1h": 256, "10d": 256}


def test_size_that_cannot_win_at_the_matmul_throughput_is_not_timed(make_plan: MakePlan):
    # At this throughput base would do 1,000 steps of 16 in an hour at best.
    base = BertConfig.from_preset("base", 8192)
    speed = KnownSpeed(throughput=1000.5 * step_flops(base, 16, 128) / 3600)
    result = make_plan("1h", speed=speed)
    assert "base" not in [size for size, _ in speed.timed]
    assert result.candidates[-1].reason.startswith("not timed: even at the matmul throughput")
    assert result.candidates[-1].steps == 1000


def test_only_the_chosen_size_is_timed_at_512(make_plan: MakePlan):
    speed = KnownSpeed()
    result = make_plan("2h", speed=speed)
    assert [trial for trial in speed.timed if trial[1] == 512] == [(result.recipe.model.size, 512)]


def test_trials_take_less_than_a_minute_in_total(make_plan: MakePlan):
    speed = KnownSpeed()
    make_plan("10d", speed=speed)
    assert len(speed.trials) == 6
    assert sum(trial.seconds for trial in speed.trials) < 60


def test_long_documents_give_long_sequences_a_tenth_of_the_time(make_plan: MakePlan):
    result = make_plan("6h")
    assert [(phase.max_length, phase.budget_ratio) for phase in result.recipe.phases] == [(128, 0.9), (512, 0.1)]
    # mini: 256 * 0.004 + 0.1 = 1.124 s per step at 128, 256 * 0.02 + 0.1 = 5.22 s at 512; for 19,440 s and 2,160 s.
    assert (result.recipe.model.size, result.recipe.batch_size) == ("mini", 256)
    assert [phase.steps for phase in result.recipe.phases] == [17_295, 413]
    assert result.num_tokens == pytest.approx(256 * 0.9 * (17_295 * 128 + 413 * 512))


def test_half_as_many_long_documents_give_long_sequences_half_as_much(make_plan: MakePlan):
    assert make_plan("10d", replace(ENDLESS, long_document_ratio=0.5)).recipe.phases[1].budget_ratio == 0.05


def test_short_documents_give_no_long_sequences(make_plan: MakePlan):
    speed = KnownSpeed()
    result = make_plan("1d", replace(ENDLESS, long_document_ratio=0.1), speed)
    assert [phase.max_length for phase in result.recipe.phases] == [128]
    assert result.recipe.phases[0].budget_ratio == 1.0
    assert (result.recipe.model.size, 512) not in speed.timed
    assert any("10% of the tokens are in documents of 512" in reason for reason in result.reasons)


def test_short_budget_leaves_no_time_for_long_sequences(make_plan: MakePlan):
    # A tenth of five minutes is 30 s: 71 steps of 16 sequences of mini at 512, each 16 * 0.02 + 0.1 s.
    result = make_plan("5m")
    assert [phase.max_length for phase in result.recipe.phases] == [128]
    assert any("71 steps at 512, fewer than 300" in reason for reason in result.reasons)


def test_warmup_is_a_tenth_of_a_short_run_and_the_papers_steps_of_a_long_one(make_plan: MakePlan):
    short, long = make_plan("30m"), make_plan("1000d")
    assert short.recipe.warmup_ratio == 0.1
    assert short.recipe.warmup_steps == short.steps // 10
    assert long.steps > 1_000_000
    assert long.recipe.warmup_steps == pytest.approx(10_000, rel=0.02)


def test_number_of_evaluations_and_checkpoints_is_sensible(make_plan: MakePlan):
    for budget in ("2m", "2h", "2d"):
        result = make_plan(budget)
        assert 1 <= result.steps / result.recipe.eval_steps <= 60
        assert result.recipe.eval_steps >= 100
        assert result.recipe.save_steps <= result.steps


def test_batch_that_does_not_fit_is_split_and_size_that_does_not_fit_is_ruled_out(make_plan: MakePlan):
    mini, base = (BertConfig.from_preset(size, 8192) for size in ("mini", "base"))
    memory = int(step_bytes(mini, 16, 512) / 0.8) + 1000
    assert step_bytes(base, 1, 128) > 0.8 * memory
    result = make_plan("6h", memory=memory)
    assert result.recipe.model.size == "mini"
    assert (result.recipe.batch_size, result.recipe.micro_batch_size) == (256, 16)
    assert result.memory == step_bytes(mini, 16, 512)
    assert result.candidates[-1].reason == "does not fit into memory"
    assert any("micro_batch_size 16" in reason for reason in result.reasons)


def test_more_epochs_than_the_paper_s_are_reported(make_plan: MakePlan):
    assert any(
        "more text would help" in reason for reason in make_plan("2h", replace(ENDLESS, num_tokens=500_000)).reasons
    )
    assert not any("more text would help" in reason for reason in make_plan("2h").reasons)


def test_dropout_is_used_only_for_repeated_text(make_plan: MakePlan):
    once = make_plan("2h")
    assert (once.epochs < 4, once.recipe.model.hidden_dropout_prob) == (True, 0.0)
    repeated = make_plan("2h", replace(ENDLESS, num_tokens=10_000_000))
    assert (repeated.epochs > 4, repeated.recipe.model.hidden_dropout_prob) == (True, 0.1)


def test_recipe_survives_writing_and_reading(make_plan: MakePlan, tmp_path: Path):
    for budget in ("5m", "1h30m", "1000000s"):
        result = make_plan(budget)
        (tmp_path / "plan.toml").write_text(to_toml(result.recipe), encoding="utf-8")
        assert read_recipe(tmp_path / "plan.toml", PretrainRecipe) == result.recipe
        assert result.recipe.budget == budget


@pytest.mark.parametrize("budget", ["", "soon", "0s"])
def test_missing_or_invalid_budget_is_refused(corpus: Path, budget: str):
    with pytest.raises(SettingsError, match=r"budget 2h|is no duration"):
        plan(PlanRequest(corpus, budget), KnownSpeed())


def test_budget_too_short_for_the_smallest_size_suggests_a_longer_one(make_plan: MakePlan):
    # tiny: 0.116 s per step, so 300 steps take 34.8 s
    with pytest.raises(SettingsError, match=r"20s is too short here: even tiny, .* 172 steps .* --budget 1m"):
        make_plan("20s")
    assert make_plan("40s").recipe.model.size == "tiny"
    assert make_plan("1m").recipe.model.size == "mini"  # 0.164 s per step: 365 steps


def test_too_little_memory_for_the_smallest_size_is_refused(make_plan: MakePlan):
    with pytest.raises(SettingsError, match=r"even tiny, the smallest size, needs .* GiB"):
        make_plan("2h", memory=2**20)


def test_folder_without_a_corpus_is_refused(tmp_path: Path):
    with pytest.raises(FolderError, match="not yet, a prepared corpus"):
        plan(PlanRequest(tmp_path, "2h"), KnownSpeed())


def test_plan_for_a_real_corpus(corpus: Path):
    result = plan(PlanRequest(corpus, "2h", memory=LARGE_MEMORY), KnownSpeed())
    opened_corpus = Corpus.open(corpus)
    assert result.corpus_summary == summarize_corpus(opened_corpus)
    assert result.corpus_summary.num_tokens == opened_corpus.split("train").num_tokens
    assert result.corpus_summary.objective == "mlm-nsp"
    assert result.corpus_summary.long_document_ratio == 0.0  # documents of six short sentences
    assert [phase.max_length for phase in result.recipe.phases] == [128]


def prepare_text(folder: Path, text: str, held_out_ratio: float = 0.2) -> Corpus:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\nthe\nriver\nstone\n", encoding="utf-8")
    settings = PrepareSettings(held_out_ratio=held_out_ratio)
    request = PrepareRequest(
        sources=(TextSource(str(folder / "text.txt")),),
        vocabulary=folder / "vocab.txt",
        output=folder / "corpus",
        settings=settings,
    )
    return Corpus.open(prepare(request, 1))


def test_single_sentence_documents_are_planned_without_nsp(tmp_path: Path):
    text = "\n\n".join(f"The river {'stone ' * number}the river the stone the river." for number in range(1, 40))
    assert summarize_corpus(prepare_text(tmp_path, text)).objective == "mlm"


def test_corpus_without_held_out_text_is_refused_before_anything_is_timed(tmp_path: Path):
    text = "\n\n".join(f"The river {'stone ' * number}the river.\nThe stone the river." for number in range(1, 9))
    corpus = prepare_text(tmp_path, text, held_out_ratio=0.0)
    speed = KnownSpeed()
    with pytest.raises(InputError, match="held-out"):
        plan(PlanRequest(corpus.folder, "2h"), speed)
    assert speed.trials == []
