"""The task translate: what is asked, what becomes of long and empty texts, how translations are written and scored."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch

from bertworks.datasets.labelled_texts import TextExample
from bertworks.encoders.stack import BertConfig
from bertworks.encoders.transformer import Transformer, config_from_preset
from bertworks.errors import SettingsError
from bertworks.inference.predictor import Predictor
from bertworks.inference.translator import UNFINISHED_TRANSLATIONS, translate_texts, with_search_settings
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.batching import batch_of_features
from bertworks.tasks.beam_search import BeamSearchSettings
from bertworks.tasks.module import TaskModule
from bertworks.tasks.translate import Translate, TranslationPrediction
from bertworks.text.document import Counts
from bertworks.vocabulary.surface_forms import decode_display_text
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "一", "二", "三", "四", "五", "。", "，", "the", "cat", "##s"]
RULE = WindowRule(12, 0)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return Tokenizer.load(tmp_path)


@pytest.fixture
def predictor(tokenizer: Tokenizer) -> Predictor:
    sizes = replace(
        config_from_preset("tiny", len(PIECES)),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    task = Translate.from_examples([case("一", "二")], {})
    module = TaskModule(Transformer(sizes, torch.Generator().manual_seed(0)), task)
    return Predictor(module, tokenizer, RULE)


def case(text: str, target: str | None = None) -> TextExample:
    return TextExample("0", "text 0", (text,), target)


def ids(*names: str) -> list[int]:
    return [PIECES.index(name) for name in names]


def test_the_target_is_read_behind_the_first_piece_and_asked_to_its_end(tokenizer: Tokenizer):
    question = Translate().featurize(case("一二", "三，四"), tokenizer, RULE)
    (row,) = question.sequences
    assert row.window.input_ids.tolist() == ids("[CLS]", "一", "二", "[SEP]")
    assert row.target is not None
    assert row.target.input_ids.tolist() == ids("[CLS]", "三", "，", "四")
    assert row.targets is not None
    assert row.targets.tolist() == ids("三", "，", "四", "[SEP]")
    assert question.is_trainable
    assert question.num_tokens == 8
    batch = batch_of_features([question, Translate().featurize(case("五", "一"), tokenizer, RULE)], Translate(), 0)
    assert batch.source is not None
    assert batch.source.lengths.tolist() == [4, 3]
    assert batch.lengths.tolist() == [4, 2]
    assert batch.positions is not None
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.num_tokens == 13


def test_a_start_that_a_folder_states_begins_the_target(tokenizer: Tokenizer):
    told = Translate.from_metadata({}, {"decoder_start_token_id": 0})
    (row,) = told.featurize(case("一"), tokenizer, RULE).rows
    assert row.target is not None
    assert row.target.input_ids.tolist() == [0]
    assert row.num_positions == 0


def test_a_long_text_is_read_in_sentences_and_not_learned_from(tokenizer: Tokenizer):
    question = Translate().featurize(case("一二三四。五四三二一。" + "一" * 14, "五"), tokenizer, RULE)
    assert [row.window.input_ids.tolist()[1:-1] for row in question.sequences] == [
        ids("一", "二", "三", "四", "。"),
        ids("五", "四", "三", "二", "一", "。"),
        ids(*"一" * 7),
        ids(*"一" * 7),
    ]
    assert question.num_truncated == 0
    assert not question.is_trainable
    assert question.training_parts == ()


def test_a_target_that_does_not_fit_is_not_learned_from_and_nothing_is_cut(tokenizer: Tokenizer):
    assert Translate().featurize(case("一", "二" * 11), tokenizer, RULE).teaches
    long = Translate().featurize(case("一", "二" * 12), tokenizer, RULE)
    assert not long.is_trainable
    assert long.sequences[0].num_positions == 0


def test_with_truncate_what_is_cut_is_counted(tokenizer: Tokenizer):
    question = Translate().featurize(case("一" * 14), tokenizer, replace(RULE, truncate=True))
    assert len(question.sequences) == 1
    assert question.num_truncated == 4


def test_an_empty_text_has_an_empty_translation(predictor: Predictor):
    found = list(translate_texts(predictor, ["", "一二", " "]))
    assert [found[0].text, found[2].text] == ["", ""]
    assert found[1].is_finished or len(found[1].text) > 0


def test_chinese_is_written_without_spaces_and_english_with_them(tokenizer: Tokenizer):
    assert decode_display_text(tokenizer, ids("一", "二", "，", "三", "。")) == "一二，三。"
    assert decode_display_text(tokenizer, ids("the", "cat", "##s")) == "the cats"
    assert decode_display_text(tokenizer, ids("一", "the", "cat", "二")) == "一the cat二"


def test_translations_of_the_rows_of_a_text_are_joined(tokenizer: Tokenizer):
    task = Translate()
    question = task.featurize(case("一" * 20), tokenizer, RULE)
    outputs = [np.array([0, 0, -1.5, 1, *ids(*own)], dtype=np.float32) for own in (("一", "。"), ("二",))]
    said = task.decode(case("一" * 20), question, outputs)
    assert (said.text, said.log_probability, said.num_tokens, said.is_finished) == ("一。二", -3.0, 5, True)
    english = [np.array([0, 0, -1, number, *ids("the", "cat")], dtype=np.float32) for number in (1, 0)]
    said = task.decode(case("一" * 20), question, english)
    assert said.text == "the cat the cat"
    assert not said.is_finished


def test_the_loss_of_a_batch_is_torchs_with_smoothing_and_its_gradients_too(predictor: Predictor):
    task, module = predictor.module.task, predictor.module
    questions = [task.featurize(one, predictor.tokenizer, RULE) for one in (case("一二", "三"), case("五", "四，二。"))]
    batch = batch_of_features(questions, task, 0)
    module.train()
    found = module(batch, {"task": 0.5})
    found.value.backward()
    slopes = [one.grad.clone() for one in module.parameters() if one.grad is not None]
    module.zero_grad()
    encoded = module.encoder(batch)
    assert batch.positions is not None
    assert batch.targets is not None
    scores = encoded.gather(batch.positions) @ module.encoder.token_embeddings.weight.t()
    expected = torch.nn.functional.cross_entropy(scores, batch.targets, label_smoothing=0.1, reduction="sum")
    (0.5 * expected).backward()
    assert float(found.value.detach()) == pytest.approx(0.5 * float(expected.detach()), abs=1e-4)
    for one, other in zip(slopes, (own.grad for own in module.parameters() if own.grad is not None), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_scores_are_those_of_sacrebleu_over_all_and_the_loss_is_of_the_right_texts(predictor: Predictor):
    cases = [case("一二", "三四五"), case("五", "四，二。"), case("一" * 20, "二")]
    task = predictor.module.task
    pairs = list(predictor.predict(cases))
    scored = task.score(pairs)
    said, right = [one.text for _, one in pairs], [[one.label for one in cases]]
    assert scored.metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(said, right, tokenize="zh").score / 100)
    assert scored.metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(said, right).score / 100)
    questions = [
        task.featurize(one, predictor.tokenizer, RULE) for one in cases[:2]
    ]  # the third is too long to be read whole
    batch = batch_of_features(questions, task, 0)
    with torch.no_grad():
        whole = predictor.module.eval()(batch, {"task": 1.0})
    assert scored.metrics["loss"] == pytest.approx(
        float(whole.parts["task"].total) / whole.parts["task"].count, rel=1e-5
    )
    assert scored.main_value == scored.metrics["bleu"]


def test_perfect_translations_have_perfect_scores():
    said = [(case("一", "三四五一二"), TranslationPrediction("0", "三四五一二", -1.0, 6, True))] * 2
    figures = Translate(bleu_tokenizer="zh").score(said).metrics
    assert figures == {"bleu": pytest.approx(1.0), "chrf": pytest.approx(1.0)}


def test_a_model_learns_greedily_and_is_used_with_a_search():
    task = Translate.from_examples([case("一", "这是现代的中文。")], {"searching": BeamSearchSettings(beams=3)})
    assert task.bleu_tokenizer == "zh"
    assert task.search_settings.num_beams == 1
    used = task.calibrate([], [])
    assert isinstance(used, Translate)
    assert used.search_settings.num_beams == 3
    assert Translate.from_metadata(used.metadata(), {}).search_settings == BeamSearchSettings(num_beams=3)
    assert Translate.from_examples([case("一", "This is English, and so is that.")], {}).cut == "13a"
    with pytest.raises(SettingsError, match="smoothing is 1"):
        Translate.from_examples([case("一", "二")], {"smoothing": 1})


def test_another_search_leaves_the_model_as_it_is(predictor: Predictor):
    other = with_search_settings(predictor, BeamSearchSettings(num_beams=2, max_extra_tokens=0))
    assert predictor.module.task.searching == BeamSearchSettings(num_beams=1)
    assert other.module.encoder is predictor.module.encoder
    counts = Counts()
    found = list(translate_texts(other, ["一", "二"], counts))
    assert counts[UNFINISHED_TRANSLATIONS] == sum(not one.is_finished for one in found)


def test_a_model_without_a_decoder_is_refused():
    with pytest.raises(SettingsError, match="family 'bert' has no decoder and cannot translate"):
        Translate().head(BertConfig.from_preset("tiny", 20))
