"""What a package says about a corpus: counts by hand, source names without folders, languages, held-out texts."""

from pathlib import Path

import pytest
from small_models import write_tokenizer

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.exporters.corpus_facts import SourceFacts, held_out_texts, read_corpus_facts
from bertworks.text.sources import TextSource

ENGLISH = ["The cat sat on the mat. It was very good.", "The dog was in Paris. Who was it with?"]
CHINESE = "我喜欢看电影。电影很好看。我喜欢电影很好。"
HELD_OUT = "John is not good. John is bad. John was dull. The film is dull. And it is bad."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("facts")
    (folder / "english.txt").write_text("\n\n".join(ENGLISH) + "\n")
    (folder / "chinese.txt").write_text(CHINESE + "\n", encoding="utf-8")
    (folder / "later.txt").write_text(HELD_OUT + "\n")
    write_tokenizer(folder / "vocabulary")
    sources = (
        TextSource(str(folder / "english.txt")),
        TextSource(str(folder / "chinese.txt"), weight=2.0),
        TextSource(str(folder / "later.txt"), split="held-out"),
    )
    for word_rule in ("tokens", "jieba"):  # the same tokens twice
        request = PrepareRequest(
            sources=sources, vocabulary=folder / "vocabulary", output=folder / "corpus", word_rule=word_rule
        )
        prepare(request, 1)
    return folder


def test_documents_sentences_and_characters_are_counted_by_source(home: Path):
    """The text of a document ends with a line break."""
    facts = read_corpus_facts(home / "corpus", write_tokenizer(home / "vocabulary").hash)
    assert (facts.num_documents, facts.num_sentences) == (4, 2 + 2 + 3 + 5)
    assert facts.num_characters == sum(map(len, [*ENGLISH, CHINESE, HELD_OUT])) + 4
    assert sorted(facts.sources, key=lambda source: source.name) == [
        SourceFacts("chinese.txt", 1, len(CHINESE) + 1, 2.0),
        SourceFacts("english.txt", 2, sum(map(len, ENGLISH)) + 2, 1.0),
        SourceFacts("later.txt", 1, len(HELD_OUT) + 1, 1.0),
    ]


def test_tokens_of_the_model_are_counted(home: Path):
    """Held out are five sentences of 5, 4, 4, 5 and 5 tokens."""
    facts = read_corpus_facts(home / "corpus", write_tokenizer(home / "vocabulary").hash)
    assert (facts.num_held_out_documents, facts.num_held_out_tokens) == (1, 23)
    assert facts.num_tokens == 23 + (7 + 5) + (6 + 5) + len(CHINESE)


def test_languages_are_ratios_of_the_characters(home: Path):
    facts = read_corpus_facts(home / "corpus", write_tokenizer(home / "vocabulary").hash)
    assert list(facts.languages) == ["en", "zh"]
    assert facts.languages["zh"] == pytest.approx(len(CHINESE) / facts.num_characters, abs=0.01)
    assert sum(facts.languages.values()) == pytest.approx(1)


def test_held_out_texts_are_the_first_sentences_of_held_out_documents(home: Path):
    assert list(held_out_texts(home / "corpus")) == ["John is not good. John is bad. John was dull. The film is dull."]
