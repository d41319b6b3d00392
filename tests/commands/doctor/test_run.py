"""The corpus doctor on generated texts: good text passes, each common mistake is detected, statistics are correct."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from bertworks.commands.doctor.diagnosis import Measurements
from bertworks.commands.doctor.findings import SEVERITIES
from bertworks.commands.doctor.run import Diagnosis, Finding, Inspection, examine, measure
from bertworks.commands.prepare import Progress
from bertworks.errors import InputError
from bertworks.text.sources import ReadSettings, TextSource, blocks
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

# Generated running text: every document has its own nouns, and each sentence repeats the last noun of the one before.
ENGLISH_TEMPLATES = (
    "In the valley the {a} was older than the {b}, and nobody had ever asked why.",
    "She put the {a} next to the {b} before the rain began.",
    "Most of the {a} came from the north, while a {b} was made at home.",
    "Without a {a} there is no {b}, said the miller to his daughter.",
    "They sold the {a} for silver and kept the {b} for the winter.",
)
CHINESE_TEMPLATES = (
    "村里的{a}比{b}还要古老，从来没有人问过原因。",
    "下雨之前，她把{a}放在{b}的旁边。",
    "大多数{a}来自北方，而{b}是在家里做的。",
    "磨坊主对女儿说，没有{a}就没有{b}！",
    "他们卖掉了{a}，留下{b}准备过冬。",
)
ENGLISH_NOUNS = ["".join(parts) for parts in itertools.product(
    ("bar", "fen", "gol", "hus", "kel", "lom", "mir", "nad", "pos", "rul"),
    ("tan", "ves", "wick", "zor", "dell", "fin", "gam", "hol", "jas", "kin"),
    ("er", "let", "ing", "age"),
)]  # fmt: skip
CHINESE_NOUNS = [
    "".join(parts)
    for parts in itertools.product(
        "金银铜铁木石玉竹瓷纸布皮丝棉草麦茶酒盐糖", "碗灯桥船琴剑鼓笔镜钟锅伞车门窗床椅柜箱瓶"
    )
]


def documents(templates: tuple[str, ...], nouns: list[str], number: int = 40, length: int = 12) -> list[list[str]]:
    """Return running text: `number` documents of `length` distinct sentences."""
    rng = random.Random(7)
    seen: set[str] = set()
    texts = []
    for _ in range(number):
        chain = rng.sample(nouns, length + 1)
        sentences = []
        for a, b in itertools.pairwise(chain):
            new = [sentence for template in templates if (sentence := template.format(a=a, b=b)) not in seen]
            sentences.append(rng.choice(new))
            seen.add(sentences[-1])
        texts.append(sentences)
    return texts


def english(number: int = 40, length: int = 12) -> list[list[str]]:
    return documents(ENGLISH_TEMPLATES, ENGLISH_NOUNS, number, length)


def chinese(number: int = 40, length: int = 12) -> list[list[str]]:
    return documents(CHINESE_TEMPLATES, CHINESE_NOUNS, number, length)


def join_texts(texts: list[list[str]]) -> str:
    """One sentence per line, a blank line between documents."""
    return "\n\n".join("\n".join(sentences) for sentences in texts) + "\n"


def shuffle_texts(texts: list[list[str]]) -> list[list[str]]:
    """The same sentences in random order, in documents of the same lengths."""
    sentences = [sentence for text in texts for sentence in text]
    random.Random(3).shuffle(sentences)
    remaining = iter(sentences)
    return [[next(remaining) for _ in text] for text in texts]


class DoctorRun:
    """Writes a text to a file and examines it in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, text: str | bytes, name: str = "text.txt") -> TextSource:
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return TextSource(str(path))

    def examine(self, text: str | bytes, vocabulary: Tokenizer | None = None) -> Diagnosis:
        return examine([self.source(text)], vocabulary=vocabulary, workers=1)


@pytest.fixture
def doctor(tmp_path: Path) -> DoctorRun:
    return DoctorRun(tmp_path)


def find(diagnosis: Diagnosis, title: str) -> Finding:
    """Return the only finding whose title contains `title`."""
    matches = [one for one in diagnosis.findings if title in one.title]
    assert len(matches) == 1, [one.title for one in diagnosis.findings]
    return matches[0]


def warnings_of(diagnosis: Diagnosis) -> list[str]:
    return [one.title for one in diagnosis.findings if one.severity != "note"]


def make_tokenizer(tokens: list[str], cased: bool = False) -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend([*SPECIALS, *tokens], cased))


def words_of(text: str) -> list[str]:
    spaced = "".join(c if c.isalnum() else f" {c} " for c in text)
    return sorted(set(spaced.split()))


# ---------------------------------------------------------------- good text


@pytest.mark.parametrize("texts", [english(), chinese()], ids=["english", "chinese"])
def test_good_text_raises_no_warning(doctor: DoctorRun, texts: list[list[str]]) -> None:
    diagnosis = doctor.examine(join_texts(texts))
    assert warnings_of(diagnosis) == []
    assert diagnosis.documents == 40
    assert diagnosis.sentences == 480
    assert diagnosis.pairable_ratio == 1.0


def test_good_text_with_a_suitable_vocabulary_raises_no_warning(doctor: DoctorRun) -> None:
    text = join_texts(english())
    diagnosis = doctor.examine(text, make_tokenizer(words_of(text.lower())))
    assert warnings_of(diagnosis) == []
    assert diagnosis.vocabulary is not None
    assert diagnosis.vocabulary.unknown_ratio == 0.0
    assert diagnosis.vocabulary.tokens_per_word == 1.0


def test_little_text_is_only_a_note(doctor: DoctorRun) -> None:
    assert find(doctor.examine(join_texts(english())), "little text").severity == "note"


# ---------------------------------------------------------------- documents and their order


def test_blank_line_after_every_sentence_is_detected(doctor: DoctorRun) -> None:
    text = "\n\n".join(sentence for document in english() for sentence in document)
    diagnosis = doctor.examine(text)
    finding = find(diagnosis, "single sentence")
    assert finding.severity == "warning"
    assert "480 of 480 documents" in finding.evidence
    assert "running text" in finding.evidence
    assert diagnosis.pairable_ratio == 0.0
    assert "shuffled" not in str(diagnosis.findings)


def test_blank_line_after_short_chinese_sentences_is_detected_although_cleaning_drops_them(doctor: DoctorRun) -> None:
    text = "\n\n".join(sentence for document in chinese() for sentence in document)
    finding = find(doctor.examine(text), "single sentence")
    assert "480 of 480 documents" in finding.evidence


def test_independent_single_sentences_are_not_called_running_text(doctor: DoctorRun) -> None:
    text = "\n\n".join(sentence for document in shuffle_texts(english()) for sentence in document)
    assert "running text" not in find(doctor.examine(text), "single sentence").evidence


def test_giant_document_is_detected(doctor: DoctorRun) -> None:
    text = "\n".join(sentence for document in english() for sentence in document)
    finding = find(doctor.examine(text), "giant document")
    assert finding.severity == "warning"
    assert "480 sentences in 1 document" in finding.evidence


@pytest.mark.parametrize("texts", [english(60, 15), chinese(60, 15)], ids=["english", "chinese"])
def test_shuffled_sentences_are_detected(doctor: DoctorRun, texts: list[list[str]]) -> None:
    finding = find(doctor.examine(join_texts(shuffle_texts(texts))), "sentences seem to be shuffled")
    assert finding.severity == "warning"
    assert "840 pairs" in finding.evidence
    assert "shuffled" not in str(doctor.examine(join_texts(texts)).findings)


def test_sentences_shuffled_within_documents_are_detected(doctor: DoctorRun) -> None:
    texts = english(60, 15)
    shuffled = [random.Random(number).sample(text, len(text)) for number, text in enumerate(texts)]
    find(doctor.examine(join_texts(shuffled)), "of each document seem to be shuffled")


def test_duplicate_documents_are_detected_and_counted(doctor: DoctorRun) -> None:
    texts = english(30)
    diagnosis = doctor.examine(join_texts(texts + texts[:15]))
    assert diagnosis.duplicate_documents_ratio == pytest.approx(15 / 45)
    assert diagnosis.duplicates_exact
    assert find(diagnosis, "more than once").severity == "warning"


def test_repeated_lines_are_detected_with_an_excerpt(doctor: DoctorRun) -> None:
    texts = [[*document, "Home | About | Contact", "All rights reserved."] * 2 for document in english(30, 2)]
    diagnosis = doctor.examine(join_texts(texts))
    finding = find(diagnosis, "lines are repeated")
    assert finding.severity == "warning"
    assert "“Home | About | Contact”" in finding.evidence
    assert diagnosis.lines == 240
    assert diagnosis.copied_lines_ratio == pytest.approx((240 - 62) / 240)


# ---------------------------------------------------------------- processed text


def test_lower_cased_text_is_detected(doctor: DoctorRun) -> None:
    finding = find(doctor.examine(join_texts(english()).lower()), "lower-cased")
    assert finding.severity == "warning"
    assert "0.00%" in finding.evidence


def test_lower_cased_text_is_harmless_with_an_uncased_vocabulary(doctor: DoctorRun) -> None:
    text = join_texts(english()).lower()
    assert find(doctor.examine(text, make_tokenizer(words_of(text))), "lower-cased").severity == "note"


@pytest.mark.parametrize(
    ("old", "new", "evidence"),
    [
        (",", " ,", "have a space before them"),
        ("older than", "well @-@ known", "@-@ marks"),
        ("daughter", "daugh ##ter", "## tokens"),
        ("nobody had", "they had n't", "n't apart"),
        ("silver", "<unk>", "unknown words"),
    ],
)
def test_tokenized_text_is_detected(doctor: DoctorRun, old: str, new: str, evidence: str) -> None:
    finding = find(doctor.examine(join_texts(english()).replace(old, new)), "already tokenized")
    assert finding.severity == "warning"
    assert evidence in finding.evidence


def test_chinese_with_spaces_between_words_is_detected(doctor: DoctorRun) -> None:
    spaced = [[" ".join(sentence[n : n + 2] for n in range(0, len(sentence), 2)) for sentence in d] for d in chinese()]
    finding = find(doctor.examine(join_texts(spaced)), "already tokenized")
    assert "Chinese characters have a space after them" in finding.evidence


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('<div class="entry"><a href="/x">The miller</a> came home late.</div>', "HTML"),
        ("The {{cite web|url=x}} [[miller|man]] came home late.", "wiki markup"),
        ('{"title": "The miller", "views": 3}', "JSON"),
        ("for (int i = 0; i < n; i++) { total += weights[i] * height(i); }", "code"),
        ("data:image/png;base64," + "iVBORw0KGgo+AAAA/" * 9, "encoded data"),
    ],
)
def test_markup_is_detected(doctor: DoctorRun, line: str, kind: str) -> None:
    text = join_texts([[*document, line] for document in english(30, 9)])
    finding = find(doctor.examine(text), "Markup")
    assert finding.severity == "warning"
    assert f"30 lines with {kind}" in finding.evidence


# ---------------------------------------------------------------- damage


def test_mojibake_is_detected_with_an_excerpt(doctor: DoctorRun) -> None:
    line = "The cafÃ© of the miller â€œRenÃ©eâ€\x9d stood in the rain."
    diagnosis = doctor.examine(join_texts([[*document, line] for document in english(30, 9)]))
    finding = find(diagnosis, "decoded with the wrong encoding")
    assert finding.severity == "warning"
    assert "30 lines" in finding.evidence
    assert "cafÃ©" in finding.evidence


@pytest.mark.parametrize(
    "line",
    [
        "磨坊主的女儿站在雨中，没有人知道原因。".encode("gb18030").decode("latin-1"),
        "磨坊主的女儿是中国人，在雨中的城里。".encode().decode("gb18030", errors="replace"),
        "没有人知道锟斤拷锟斤拷的原因。",
    ],
    ids=["gb as latin", "utf-8 as gb", "U+FFFD as gb"],
)
def test_chinese_mojibake_is_detected(doctor: DoctorRun, line: str) -> None:
    diagnosis = doctor.examine(join_texts([[*document, line] for document in chinese(30, 9)]))
    finding = find(diagnosis, "cannot be repaired")
    assert finding.severity == "warning"
    assert "30 lines" in finding.evidence


def test_replacement_and_control_characters_are_detected_and_escaped(doctor: DoctorRun) -> None:
    texts = english(30, 9)
    texts[0].append("The mill\ufffdr came home.")
    texts[1].append("The miller\x07 came home.")
    diagnosis = doctor.examine(join_texts(texts))
    assert "“The mill\ufffdr came home.”" in find(diagnosis, "Characters were lost").evidence
    assert "“The miller\\x07 came home.”" in find(diagnosis, "control characters").evidence
    assert diagnosis.damaged_lines == {"control characters": 1, "replacement characters (U+FFFD)": 1}


def test_lines_that_are_not_utf8_are_counted_with_their_file(doctor: DoctorRun) -> None:
    text = join_texts(english(30, 9)).encode() + "\nThe café of Renée is open.\n".encode("cp1252")
    text += "\nThe café of André is open.\n".encode() * 2
    finding = find(doctor.examine(text), "not UTF-8")
    assert finding.evidence == "1 line with bytes that are not UTF-8, such as in text.txt"


def test_dropped_documents_are_reported_with_the_reason(doctor: DoctorRun) -> None:
    texts = [*english(30), *([f"No. {number}"] for number in range(20))]
    diagnosis = doctor.examine(join_texts(texts))
    finding = find(diagnosis, "Cleaning drops")
    assert finding.severity == "warning"
    assert finding.evidence == "of 50: 20 shorter than 20 characters, such as “No. 0” (text.txt:391)"
    assert diagnosis.cleaning["documents dropped: shorter than 20 characters"] == 20


def test_text_without_remaining_documents_is_an_error(doctor: DoctorRun) -> None:
    assert find(doctor.examine("Yes.\n\nNo.\n"), "no text").severity == "error"


def test_missing_source_is_an_error_with_its_name() -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt does not exist"):
        examine([TextSource("nowhere.txt")])


# ---------------------------------------------------------------- vocabulary


def test_unknown_tokens_are_counted_with_their_words(doctor: DoctorRun) -> None:
    text = join_texts(english())
    known = [word for word in words_of(text.lower()) if word != "the"]
    diagnosis = doctor.examine(text, make_tokenizer(known))
    assert diagnosis.vocabulary is not None
    assert {word.lower() for word in diagnosis.vocabulary.unknown_words} == {"the"}
    assert "unknown" in find(diagnosis, "does not cover much").evidence


def test_chinese_text_with_an_english_vocabulary_is_an_error(doctor: DoctorRun) -> None:
    diagnosis = doctor.examine(join_texts(chinese()), make_tokenizer(words_of(join_texts(english()).lower())))
    finding = find(diagnosis, "does not cover Chinese")
    assert finding.severity == "error"
    assert "bert-base-chinese" in finding.advice


def test_uncased_vocabulary_used_as_cased_is_detected(doctor: DoctorRun) -> None:
    text = join_texts(english())
    tokens = [*words_of(text.lower()), *"STMWI", "##he", "##hey", "##ost", "##ithout", "##n"]
    assert "used as a cased one" not in str(doctor.examine(text, make_tokenizer(tokens, cased=True)).findings)
    find(doctor.examine(text, make_tokenizer(words_of(text.lower()), cased=True)), "uncased vocabulary is used")


def test_cased_vocabulary_used_as_uncased_is_detected(doctor: DoctorRun) -> None:
    text = join_texts(english())
    tokens = [*words_of(text.lower()), *(noun.title() for noun in ENGLISH_NOUNS)]
    find(doctor.examine(text, make_tokenizer(tokens)), "A cased vocabulary is used")


def test_words_split_into_many_tokens_are_detected(doctor: DoctorRun) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = [*letters, *(f"##{letter}" for letter in letters), ",", "."]
    diagnosis = doctor.examine(join_texts(english()), make_tokenizer(tokens))
    assert "tokens per word" in find(diagnosis, "many tokens").evidence


# ---------------------------------------------------------------- held-out text


def test_held_out_text_in_the_training_text_is_detected(doctor: DoctorRun) -> None:
    texts = english(60)
    training = doctor.source(join_texts(texts[:40]))
    held_out = doctor.source(join_texts(texts[36:56]), "held-out.txt")
    diagnosis = examine([training], [held_out], workers=1)
    assert diagnosis.held_out is not None
    assert diagnosis.held_out.documents == 20
    assert diagnosis.held_out.shared_documents_ratio == pytest.approx(4 / 20)
    assert diagnosis.held_out.exact
    finding = find(diagnosis, "Held-out text")
    assert finding.severity == "error"
    assert "20.0% of 20 held-out documents" in finding.evidence
    assert texts[36][0][:40] in finding.evidence


def test_held_out_text_without_overlap_raises_no_warning(doctor: DoctorRun) -> None:
    texts = english(60)
    held_out = doctor.source(join_texts(texts[40:]), "held-out.txt")
    diagnosis = examine([doctor.source(join_texts(texts[:40]))], [held_out], workers=1)
    assert diagnosis.held_out is not None
    assert diagnosis.held_out.shared_lines_ratio == 0.0
    assert warnings_of(diagnosis) == []


# ---------------------------------------------------------------- merging, workers, progress, JSON


def test_merging_is_commutative(doctor: DoctorRun) -> None:
    read_settings = ReadSettings(block_bytes=4096)
    source = doctor.source(join_texts(english() + chinese()))
    parts = [measure(block, Inspection()) for block in blocks([source], read_settings)]
    assert len(parts) > 5
    sums = []
    for order in (parts, parts[::-1]):
        total = Measurements()
        for part in order:
            total.merge(part)
        sums.append(total)
    assert sums[0].statistics == sums[1].statistics
    assert sums[0].counts == sums[1].counts
    assert sums[0].lines.values.tolist() == sums[1].lines.values.tolist()
    assert sums[0].lines.counts.tolist() == sums[1].lines.counts.tolist()


def test_diagnosis_does_not_depend_on_the_number_of_workers(doctor: DoctorRun) -> None:
    read_settings = ReadSettings(block_bytes=16_384)
    text = join_texts(english() + chinese())
    tokenizer = make_tokenizer(words_of(join_texts(english()).lower()))
    source, held_out = doctor.source(text), doctor.source(join_texts(chinese()[:3]), "held-out.txt")
    results = [examine([source], [held_out], tokenizer, read_settings, workers).to_dict() for workers in (1, 2)]
    assert results[0] == results[1]
    assert json.loads(json.dumps(results[0])) == json.loads(json.dumps(results[1]))


def test_progress_reaches_the_size_of_the_sources(doctor: DoctorRun) -> None:
    text = join_texts(english())
    events: list[Progress] = []
    examine([doctor.source(text)], read_settings=ReadSettings(block_bytes=8192), workers=1, watch=events.append)
    assert len(events) > 2
    assert events[-1] == Progress("reading", len(text), len(text), "bytes")


def test_findings_are_sorted_by_severity_and_have_advice(doctor: DoctorRun) -> None:
    diagnosis = doctor.examine(join_texts(chinese()), make_tokenizer(["a"]))
    ranks = [SEVERITIES.index(one.severity) for one in diagnosis.findings]
    assert ranks == sorted(ranks)
    assert len(ranks) >= 2
    assert all(one.evidence and one.advice for one in diagnosis.findings)


def test_json_has_stable_keys(doctor: DoctorRun) -> None:
    values = doctor.examine(join_texts(english())).to_dict()
    assert {"documents", "sentences", "languages", "scripts", "cleaning", "vocabulary", "held_out"} < set(values)
    assert values["sentences_per_document"]["bucket_ratios"] == {
        "1": 0.0, "2-4": 0.0, "5-19": 1.0, "20-99": 0.0, "100-999": 0.0, "1000+": 0.0,
    }  # fmt: skip
    assert values["languages"] == {"en": 1.0}
    assert set(values["findings"][0]) == {"severity", "title", "evidence", "advice"}
