"""Translation: featurization, long and empty texts, generation and scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch

from bertworks.datasets.labelled_texts import TextExample
from bertworks.encoders.bert import BertConfig
from bertworks.encoders.transformer import Transformer, TransformerConfig
from bertworks.errors import SettingsError
from bertworks.inference.predictor import Predictor
from bertworks.inference.translator import UNFINISHED_TRANSLATIONS, translate_texts, with_search_settings
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.batching import batch_of_features
from bertworks.tasks.beam_search_settings import BeamSearchSettings
from bertworks.tasks.module import TaskModule
from bertworks.tasks.translate import Translate, TranslationPrediction
from bertworks.text.document import Counts
from bertworks.vocabulary.surface_forms import decode_display_text
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "一", "二", "三", "四", "五", "。", "，", "the", "cat", "##s"]
WINDOW_RULE = WindowRule(12, 0)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return Tokenizer.load(tmp_path)


@pytest.fixture
def predictor(tokenizer: Tokenizer) -> Predictor:
    config = TransformerConfig.from_preset("tiny", len(TOKENS)).resized(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_length=16
    )
    task = Translate.from_examples([make_example("一", "二")], {})
    module = TaskModule(Transformer(config, torch.Generator().manual_seed(0)), task)
    return Predictor(module, tokenizer, WINDOW_RULE)


def make_example(text: str, target: str | None = None) -> TextExample:
    return TextExample("0", "text 0", (text,), target)


def token_ids(*names: str) -> list[int]:
    return [TOKENS.index(name) for name in names]


def test_the_decoder_input_is_the_shifted_target(tokenizer: Tokenizer):
    features = Translate().featurize(make_example("一二", "三，四"), tokenizer, WINDOW_RULE)
    (sequence,) = features.sequences
    assert sequence.input_ids.tolist() == token_ids("[CLS]", "一", "二", "[SEP]")
    assert sequence.target is not None
    assert sequence.target.input_ids.tolist() == token_ids("[CLS]", "三", "，", "四")
    assert sequence.targets is not None
    assert sequence.targets.tolist() == token_ids("三", "，", "四", "[SEP]")
    assert features.is_trainable
    assert features.num_tokens == 8
    batch = batch_of_features(
        [features, Translate().featurize(make_example("五", "一"), tokenizer, WINDOW_RULE)], Translate(), 0
    )
    assert batch.source is not None
    assert batch.source.lengths.tolist() == [4, 3]
    assert batch.lengths.tolist() == [4, 2]
    assert batch.positions is not None
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.num_tokens == 13


def test_a_folder_s_decoder_start_token_is_used(tokenizer: Tokenizer):
    task = Translate.from_metadata({}, {"decoder_start_token_id": 0})
    (sequence,) = task.featurize(make_example("一"), tokenizer, WINDOW_RULE).sequences
    assert sequence.target is not None
    assert sequence.target.input_ids.tolist() == [0]
    assert sequence.num_positions == 0


def test_a_long_text_is_split_into_sentences_and_not_trained_on(tokenizer: Tokenizer):
    features = Translate().featurize(make_example("一二三四。五四三二一。" + "一" * 14, "五"), tokenizer, WINDOW_RULE)
    assert [sequence.input_ids.tolist()[1:-1] for sequence in features.sequences] == [
        token_ids("一", "二", "三", "四", "。"),
        token_ids("五", "四", "三", "二", "一", "。"),
        token_ids(*"一" * 7),
        token_ids(*"一" * 7),
    ]
    assert features.num_truncated == 0
    assert not features.is_trainable
    assert features.training_parts == ()


def test_a_target_that_does_not_fit_is_not_truncated_and_not_trained_on(tokenizer: Tokenizer):
    assert Translate().featurize(make_example("一", "二" * 11), tokenizer, WINDOW_RULE).is_trainable
    long = Translate().featurize(make_example("一", "二" * 12), tokenizer, WINDOW_RULE)
    assert not long.is_trainable
    assert long.sequences[0].num_positions == 0


def test_truncated_tokens_are_counted(tokenizer: Tokenizer):
    features = Translate().featurize(make_example("一" * 14), tokenizer, replace(WINDOW_RULE, truncate=True))
    assert len(features.sequences) == 1
    assert features.num_truncated == 4


def test_an_empty_text_has_an_empty_translation(predictor: Predictor):
    translations = list(translate_texts(predictor, ["", "一二", " "]))
    assert [translations[0].text, translations[2].text] == ["", ""]
    assert translations[1].is_finished or len(translations[1].text) > 0


def test_chinese_is_decoded_without_spaces_and_english_with_them(tokenizer: Tokenizer):
    assert decode_display_text(tokenizer, token_ids("一", "二", "，", "三", "。")) == "一二，三。"
    assert decode_display_text(tokenizer, token_ids("the", "cat", "##s")) == "the cats"
    assert decode_display_text(tokenizer, token_ids("一", "the", "cat", "二")) == "一the cat二"


def test_translations_of_a_text_s_windows_are_joined(tokenizer: Tokenizer):
    task = Translate()
    features = task.featurize(make_example("一" * 20), tokenizer, WINDOW_RULE)
    outputs = [np.array([0, 0, -1.5, 1, *token_ids(*names)], dtype=np.float32) for names in (("一", "。"), ("二",))]
    prediction = task.decode(make_example("一" * 20), features, outputs)
    assert (prediction.text, prediction.log_probability, prediction.num_tokens, prediction.is_finished) == (
        "一。二",
        -3.0,
        5,
        True,
    )
    english = [np.array([0, 0, -1, is_finished, *token_ids("the", "cat")], dtype=np.float32) for is_finished in (1, 0)]
    prediction = task.decode(make_example("一" * 20), features, english)
    assert prediction.text == "the cat the cat"
    assert not prediction.is_finished


def test_the_loss_and_its_gradients_equal_torch_with_label_smoothing(predictor: Predictor):
    task, module = predictor.module.task, predictor.module
    all_features = [
        task.featurize(one, predictor.tokenizer, WINDOW_RULE)
        for one in (make_example("一二", "三"), make_example("五", "四，二。"))
    ]
    batch = batch_of_features(all_features, task, 0)
    module.train()
    loss = module(batch, {"task": 0.5})
    loss.value.backward()
    gradients = [one.grad.clone() for one in module.parameters() if one.grad is not None]
    module.zero_grad()
    encoded = module.encoder(batch)
    assert batch.positions is not None
    assert batch.targets is not None
    scores = encoded.gather(batch.positions) @ module.encoder.token_embeddings.weight.t()
    expected = torch.nn.functional.cross_entropy(scores, batch.targets, label_smoothing=0.1, reduction="sum")
    (0.5 * expected).backward()
    assert float(loss.value.detach()) == pytest.approx(0.5 * float(expected.detach()), abs=1e-4)
    for one, other in zip(
        gradients, (parameter.grad for parameter in module.parameters() if parameter.grad is not None), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-5)


def test_scores_equal_sacrebleu_and_the_loss_is_of_the_references(predictor: Predictor):
    examples = [make_example("一二", "三四五"), make_example("五", "四，二。"), make_example("一" * 20, "二")]
    task = predictor.module.task
    pairs = list(predictor.predict(examples))
    scores = task.score(pairs)
    translations, references = [one.text for _, one in pairs], [[one.label for one in examples]]
    assert scores.metrics["bleu"] == pytest.approx(
        sacrebleu.corpus_bleu(translations, references, tokenize="zh").score / 100
    )
    assert scores.metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(translations, references).score / 100)
    all_features = [
        task.featurize(one, predictor.tokenizer, WINDOW_RULE) for one in examples[:2]
    ]  # the third is too long for one sequence
    batch = batch_of_features(all_features, task, 0)
    with torch.no_grad():
        loss = predictor.module.eval()(batch, {"task": 1.0})
    assert scores.metrics["loss"] == pytest.approx(float(loss.parts["task"].total) / loss.parts["task"].count, rel=1e-5)
    assert scores.main_value == scores.metrics["bleu"]


def test_perfect_translations_have_perfect_scores():
    pairs = [
        (
            make_example("一", "三四五一二"),
            TranslationPrediction(id="0", text="三四五一二", log_probability=-1.0, num_tokens=6, is_finished=True),
        )
    ] * 2
    metrics = Translate(bleu_tokenizer="zh").score(pairs).metrics
    assert metrics == {"bleu": pytest.approx(1.0), "chrf": pytest.approx(1.0)}


def test_training_decodes_greedily_and_calibrate_sets_the_beam_search():
    task = Translate.from_examples(
        [make_example("一", "这是现代的中文。")], {"search_settings": BeamSearchSettings(num_beams=3)}
    )
    assert task.bleu_tokenizer == "zh"
    assert task.search_settings.num_beams == 1
    calibrated = task.calibrate([], [])
    assert isinstance(calibrated, Translate)
    assert calibrated.search_settings.num_beams == 3
    assert Translate.from_metadata(calibrated.metadata(), {}).search_settings == BeamSearchSettings(num_beams=3)
    assert Translate.from_examples([make_example("一", "This is English, and so is that.")], {}).bleu_tokenizer == "13a"
    with pytest.raises(SettingsError, match="smoothing is 1"):
        Translate.from_examples([make_example("一", "二")], {"smoothing": 1})


def test_other_search_settings_share_the_weights(predictor: Predictor):
    other = with_search_settings(predictor, BeamSearchSettings(num_beams=2, max_extra_tokens=0))
    assert predictor.module.task.search_settings == BeamSearchSettings(num_beams=1)
    assert other.module.encoder is predictor.module.encoder
    counts = Counts()
    translations = list(translate_texts(other, ["一", "二"], counts))
    assert counts[UNFINISHED_TRANSLATIONS] == sum(not one.is_finished for one in translations)


def test_a_model_without_a_decoder_raises_an_error():
    with pytest.raises(SettingsError, match="family 'bert' has no decoder and cannot translate"):
        Translate().head(BertConfig.from_preset("tiny", 20))
