"""The doctor on hand-made texts: good text passes, each classic mistake is recognised, figures are right."""

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

# Running text in small: every document has things of its own, and each sentence takes up the last thing of the one
# before, as people do who tell something.
ENGLISH_WAYS = (
    "In the valley the {a} was older than the {b}, and nobody had ever asked why.",
    "She put the {a} next to the {b} before the rain began.",
    "Most of the {a} came from the north, while a {b} was made at home.",
    "Without a {a} there is no {b}, said the miller to his daughter.",
    "They sold the {a} for silver and kept the {b} for the winter.",
)
CHINESE_WAYS = (
    "村里的{a}比{b}还要古老，从来没有人问过原因。",
    "下雨之前，她把{a}放在{b}的旁边。",
    "大多数{a}来自北方，而{b}是在家里做的。",
    "磨坊主对女儿说，没有{a}就没有{b}！",
    "他们卖掉了{a}，留下{b}准备过冬。",
)
ENGLISH_THINGS = ["".join(parts) for parts in itertools.product(
    ("bar", "fen", "gol", "hus", "kel", "lom", "mir", "nad", "pos", "rul"),
    ("tan", "ves", "wick", "zor", "dell", "fin", "gam", "hol", "jas", "kin"),
    ("er", "let", "ing", "age"),
)]  # fmt: skip
CHINESE_THINGS = [
    "".join(parts)
    for parts in itertools.product(
        "金银铜铁木石玉竹瓷纸布皮丝棉草麦茶酒盐糖", "碗灯桥船琴剑鼓笔镜钟锅伞车门窗床椅柜箱瓶"
    )
]


def documents(ways: tuple[str, ...], things: list[str], number: int = 40, length: int = 12) -> list[list[str]]:
    """Return running text: `number` documents of `length` sentences, none of which comes twice."""
    rng = random.Random(7)
    seen: set[str] = set()
    written = []
    for _ in range(number):
        chain = rng.sample(things, length + 1)
        sentences = []
        for a, b in itertools.pairwise(chain):
            new = [sentence for way in ways if (sentence := way.format(a=a, b=b)) not in seen]
            sentences.append(rng.choice(new))
            seen.add(sentences[-1])
        written.append(sentences)
    return written


def english(number: int = 40, length: int = 12) -> list[list[str]]:
    return documents(ENGLISH_WAYS, ENGLISH_THINGS, number, length)


def chinese(number: int = 40, length: int = 12) -> list[list[str]]:
    return documents(CHINESE_WAYS, CHINESE_THINGS, number, length)


def laid_out(texts: list[list[str]]) -> str:
    """One sentence a line, a blank line between documents."""
    return "\n\n".join("\n".join(sentences) for sentences in texts) + "\n"


def shuffled(texts: list[list[str]]) -> list[list[str]]:
    """The same sentences in any order, in documents of the same lengths."""
    sentences = [sentence for text in texts for sentence in text]
    random.Random(3).shuffle(sentences)
    left = iter(sentences)
    return [[next(left) for _ in text] for text in texts]


class Patient:
    """Writes a text to a file and has it examined in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, text: str | bytes, name: str = "text.txt") -> TextSource:
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return TextSource(str(path))

    def examine(self, text: str | bytes, vocabulary: Tokenizer | None = None) -> Diagnosis:
        return examine([self.source(text)], vocabulary=vocabulary, workers=1)


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path)


def finding(diagnosis: Diagnosis, title: str) -> Finding:
    """The one finding whose title holds these words."""
    found = [one for one in diagnosis.findings if title in one.title]
    assert len(found) == 1, [one.title for one in diagnosis.findings]
    return found[0]


def serious(diagnosis: Diagnosis) -> list[str]:
    return [one.title for one in diagnosis.findings if one.severity != "note"]


def tokenizer_of(pieces: list[str], cased: bool = False) -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend([*SPECIALS, *pieces], cased))


def words_of(text: str) -> list[str]:
    spaced = "".join(c if c.isalnum() else f" {c} " for c in text)
    return sorted(set(spaced.split()))


# ---------------------------------------------------------------- good text


@pytest.mark.parametrize("texts", [english(), chinese()], ids=["english", "chinese"])
def test_good_text_raises_no_warning(patient: Patient, texts: list[list[str]]) -> None:
    diagnosis = patient.examine(laid_out(texts))
    assert serious(diagnosis) == []
    assert diagnosis.documents == 40
    assert diagnosis.sentences == 480
    assert diagnosis.pairable_ratio == 1.0


def test_good_english_with_a_vocabulary_that_fits_raises_no_warning(patient: Patient) -> None:
    text = laid_out(english())
    diagnosis = patient.examine(text, tokenizer_of(words_of(text.lower())))
    assert serious(diagnosis) == []
    assert diagnosis.vocabulary is not None
    assert diagnosis.vocabulary.unknown_ratio == 0.0
    assert diagnosis.vocabulary.tokens_per_word == 1.0


def test_little_text_is_only_a_note(patient: Patient) -> None:
    assert finding(patient.examine(laid_out(english())), "little text").severity == "note"


# ---------------------------------------------------------------- documents and their order


def test_a_blank_line_after_every_sentence_is_found(patient: Patient) -> None:
    text = "\n\n".join(sentence for document in english() for sentence in document)
    diagnosis = patient.examine(text)
    found = finding(diagnosis, "single sentence")
    assert found.severity == "warning"
    assert "480 of 480 documents" in found.evidence
    assert "running text" in found.evidence
    assert diagnosis.pairable_ratio == 0.0
    assert "shuffled" not in str(diagnosis.findings)


def test_a_blank_line_after_short_chinese_sentences_is_found_though_cleaning_drops_them(patient: Patient) -> None:
    text = "\n\n".join(sentence for document in chinese() for sentence in document)
    found = finding(patient.examine(text), "single sentence")
    assert "480 of 480 documents" in found.evidence


def test_independent_single_sentences_are_not_called_running_text(patient: Patient) -> None:
    text = "\n\n".join(sentence for document in shuffled(english()) for sentence in document)
    assert "running text" not in finding(patient.examine(text), "single sentence").evidence


def test_one_giant_document_is_found(patient: Patient) -> None:
    text = "\n".join(sentence for document in english() for sentence in document)
    found = finding(patient.examine(text), "giant document")
    assert found.severity == "warning"
    assert "480 sentences in 1 document" in found.evidence


@pytest.mark.parametrize("texts", [english(60, 15), chinese(60, 15)], ids=["english", "chinese"])
def test_a_shuffled_list_of_sentences_is_found(patient: Patient, texts: list[list[str]]) -> None:
    found = finding(patient.examine(laid_out(shuffled(texts))), "sentences seem to be shuffled")
    assert found.severity == "warning"
    assert "840 pairs" in found.evidence
    assert "shuffled" not in str(patient.examine(laid_out(texts)).findings)


def test_shuffling_inside_documents_is_found(patient: Patient) -> None:
    texts = english(60, 15)
    mixed = [random.Random(number).sample(text, len(text)) for number, text in enumerate(texts)]
    finding(patient.examine(laid_out(mixed)), "of each document seem to be shuffled")


def test_copies_of_documents_are_found_and_counted(patient: Patient) -> None:
    texts = english(30)
    diagnosis = patient.examine(laid_out(texts + texts[:15]))
    assert diagnosis.duplicate_documents_ratio == pytest.approx(15 / 45)
    assert diagnosis.duplicates_exact
    assert finding(diagnosis, "more than once").severity == "warning"


def test_lines_that_are_mostly_the_same_are_found_with_the_line(patient: Patient) -> None:
    texts = [[*document, "Home | About | Contact", "All rights reserved."] * 2 for document in english(30, 2)]
    diagnosis = patient.examine(laid_out(texts))
    found = finding(diagnosis, "lines are the same")
    assert found.severity == "warning"
    assert "“Home | About | Contact”" in found.evidence
    assert diagnosis.lines == 240
    assert diagnosis.copied_lines_ratio == pytest.approx((240 - 62) / 240)


# ---------------------------------------------------------------- what was done to the text


def test_lower_cased_text_is_found(patient: Patient) -> None:
    found = finding(patient.examine(laid_out(english()).lower()), "lower-cased")
    assert found.severity == "warning"
    assert "0.00%" in found.evidence


def test_lower_cased_text_is_harmless_with_an_uncased_vocabulary(patient: Patient) -> None:
    text = laid_out(english()).lower()
    assert finding(patient.examine(text, tokenizer_of(words_of(text))), "lower-cased").severity == "note"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (",", " ,", "have a space in front"),
        ("older than", "well @-@ known", "@-@ marks"),
        ("daughter", "daugh ##ter", "## pieces"),
        ("nobody had", "they had n't", "n't apart"),
        ("silver", "<unk>", "unknown words"),
    ],
)
def test_tokenized_text_is_found(patient: Patient, before: str, after: str, told: str) -> None:
    found = finding(patient.examine(laid_out(english()).replace(before, after)), "already tokenized")
    assert found.severity == "warning"
    assert told in found.evidence


def test_chinese_with_spaces_between_words_is_found(patient: Patient) -> None:
    spaced = [[" ".join(sentence[n : n + 2] for n in range(0, len(sentence), 2)) for sentence in d] for d in chinese()]
    found = finding(patient.examine(laid_out(spaced)), "already tokenized")
    assert "Chinese characters have a space behind them" in found.evidence


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('<div class="entry"><a href="/x">The miller</a> came home late.</div>', "HTML"),
        ("The {{cite web|url=x}} [[miller|man]] came home late.", "wiki markup"),
        ('{"title": "The miller", "views": 3}', "JSON"),
        ("for (int i = 0; i < n; i++) { total += weights[i] * height(i); }", "code"),
        ("data:image/png;base64," + "iVBORw0KGgo+AAAA/" * 9, "encoded data"),
    ],
)
def test_markup_left_in_the_text_is_found(patient: Patient, line: str, told: str) -> None:
    text = laid_out([[*document, line] for document in english(30, 9)])
    found = finding(patient.examine(text), "Markup")
    assert found.severity == "warning"
    assert f"30 lines with {told}" in found.evidence


# ---------------------------------------------------------------- damage


def test_mojibake_is_found_with_its_line(patient: Patient) -> None:
    line = "The cafÃ© of the miller â€œRenÃ©eâ€\x9d stood in the rain."
    diagnosis = patient.examine(laid_out([[*document, line] for document in english(30, 9)]))
    found = finding(diagnosis, "read in the wrong encoding")
    assert found.severity == "warning"
    assert "30 lines" in found.evidence
    assert "cafÃ©" in found.evidence


@pytest.mark.parametrize(
    "line",
    [
        "磨坊主的女儿站在雨中，没有人知道原因。".encode("gb18030").decode("latin-1"),
        "磨坊主的女儿是中国人，在雨中的城里。".encode().decode("gb18030", errors="replace"),
        "没有人知道锟斤拷锟斤拷的原因。",
    ],
    ids=["gb as latin", "utf-8 as gb", "lost characters as gb"],
)
def test_chinese_mojibake_is_found_with_its_line(patient: Patient, line: str) -> None:
    diagnosis = patient.examine(laid_out([[*document, line] for document in chinese(30, 9)]))
    found = finding(diagnosis, "cannot be repaired")
    assert found.severity == "warning"
    assert "30 lines" in found.evidence


def test_lost_and_control_characters_are_found_and_shown_escaped(patient: Patient) -> None:
    texts = english(30, 9)
    texts[0].append("The mill\ufffdr came home.")
    texts[1].append("The miller\x07 came home.")
    diagnosis = patient.examine(laid_out(texts))
    assert "“The mill\ufffdr came home.”" in finding(diagnosis, "Characters were lost").evidence
    assert "“The miller\\x07 came home.”" in finding(diagnosis, "Control characters").evidence
    assert diagnosis.damaged_lines == {"control characters": 1, "replacement characters (U+FFFD)": 1}


def test_lines_that_are_not_utf8_are_counted_with_the_file(patient: Patient) -> None:
    text = laid_out(english(30, 9)).encode() + "\nThe café of Renée is open.\n".encode("cp1252")
    text += "\nThe café of André is open.\n".encode() * 2
    found = finding(patient.examine(text), "not UTF-8")
    assert found.evidence == "1 line with bytes that are not UTF-8, such as in text.txt"


def test_what_cleaning_drops_is_told_with_the_reason(patient: Patient) -> None:
    texts = [*english(30), *([f"No. {number}"] for number in range(20))]
    diagnosis = patient.examine(laid_out(texts))
    found = finding(diagnosis, "Cleaning drops")
    assert found.severity == "warning"
    assert found.evidence == "of 50: 20 shorter than 20 characters, such as “No. 0” (text.txt:391)"
    assert diagnosis.cleaning["documents dropped: shorter than 20 characters"] == 20


def test_text_of_which_nothing_is_left_is_an_error(patient: Patient) -> None:
    assert finding(patient.examine("Yes.\n\nNo.\n"), "no text").severity == "error"


def test_a_missing_source_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt does not exist"):
        examine([TextSource("nowhere.txt")])


# ---------------------------------------------------------------- vocabulary


def test_unknown_pieces_are_counted_and_their_words_named(patient: Patient) -> None:
    text = laid_out(english())
    known = [word for word in words_of(text.lower()) if word != "the"]
    diagnosis = patient.examine(text, tokenizer_of(known))
    assert diagnosis.vocabulary is not None
    assert {word.lower() for word in diagnosis.vocabulary.unknown_words} == {"the"}
    assert "unknown" in finding(diagnosis, "does not know much").evidence


def test_chinese_text_with_an_english_vocabulary_is_an_error(patient: Patient) -> None:
    diagnosis = patient.examine(laid_out(chinese()), tokenizer_of(words_of(laid_out(english()).lower())))
    found = finding(diagnosis, "does not know Chinese")
    assert found.severity == "error"
    assert "bert-base-chinese" in found.advice


def test_an_uncased_vocabulary_used_as_cased_is_found(patient: Patient) -> None:
    text = laid_out(english())
    pieces = [*words_of(text.lower()), *"STMWI", "##he", "##hey", "##ost", "##ithout", "##n"]
    assert "used as a cased one" not in str(patient.examine(text, tokenizer_of(pieces, cased=True)).findings)
    finding(patient.examine(text, tokenizer_of(words_of(text.lower()), cased=True)), "uncased vocabulary is used")


def test_a_cased_vocabulary_used_as_uncased_is_found(patient: Patient) -> None:
    text = laid_out(english())
    pieces = [*words_of(text.lower()), *(thing.title() for thing in ENGLISH_THINGS)]
    finding(patient.examine(text, tokenizer_of(pieces)), "A cased vocabulary is used")


def test_words_cut_into_many_pieces_are_found(patient: Patient) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*letters, *(f"##{letter}" for letter in letters), ",", "."]
    diagnosis = patient.examine(laid_out(english()), tokenizer_of(pieces))
    assert "pieces a word" in finding(diagnosis, "many pieces").evidence


# ---------------------------------------------------------------- held-out text


def test_held_out_text_in_the_training_text_is_found_exactly(patient: Patient) -> None:
    texts = english(60)
    training = patient.source(laid_out(texts[:40]))
    held_out = patient.source(laid_out(texts[36:56]), "held-out.txt")
    diagnosis = examine([training], [held_out], workers=1)
    assert diagnosis.held_out is not None
    assert diagnosis.held_out.documents == 20
    assert diagnosis.held_out.shared_documents_ratio == pytest.approx(4 / 20)
    assert diagnosis.held_out.exact
    found = finding(diagnosis, "Held-out text")
    assert found.severity == "error"
    assert "20.0% of 20 held-out documents" in found.evidence
    assert texts[36][0][:40] in found.evidence


def test_held_out_text_that_stands_nowhere_else_is_no_finding(patient: Patient) -> None:
    texts = english(60)
    held_out = patient.source(laid_out(texts[40:]), "held-out.txt")
    diagnosis = examine([patient.source(laid_out(texts[:40]))], [held_out], workers=1)
    assert diagnosis.held_out is not None
    assert diagnosis.held_out.shared_lines_ratio == 0.0
    assert serious(diagnosis) == []


# ---------------------------------------------------------------- how it works


def test_the_order_of_merging_does_not_matter(patient: Patient) -> None:
    reading = ReadSettings(block_bytes=4096)
    source = patient.source(laid_out(english() + chinese()))
    parts = [measure(block, Inspection()) for block in blocks([source], reading)]
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


def test_two_workers_find_what_one_finds(patient: Patient) -> None:
    reading = ReadSettings(block_bytes=16_384)
    text = laid_out(english() + chinese())
    tokenizer = tokenizer_of(words_of(laid_out(english()).lower()))
    source, held_out = patient.source(text), patient.source(laid_out(chinese()[:3]), "held-out.txt")
    told = [examine([source], [held_out], tokenizer, reading, workers).to_dict() for workers in (1, 2)]
    assert told[0] == told[1]
    assert json.loads(json.dumps(told[0])) == json.loads(json.dumps(told[1]))


def test_progress_reaches_the_size_of_the_sources(patient: Patient) -> None:
    text = laid_out(english())
    seen: list[Progress] = []
    examine([patient.source(text)], read_settings=ReadSettings(block_bytes=8192), workers=1, watch=seen.append)
    assert len(seen) > 2
    assert seen[-1] == Progress("reading", len(text), len(text), "bytes")


def test_findings_come_worst_first_and_tell_what_to_do(patient: Patient) -> None:
    diagnosis = patient.examine(laid_out(chinese()), tokenizer_of(["a"]))
    ranks = [SEVERITIES.index(one.severity) for one in diagnosis.findings]
    assert ranks == sorted(ranks)
    assert len(ranks) >= 2
    assert all(one.evidence and one.advice for one in diagnosis.findings)


def test_json_has_stable_keys(patient: Patient) -> None:
    told = patient.examine(laid_out(english())).to_dict()
    assert {"documents", "sentences", "languages", "scripts", "cleaning", "vocabulary", "held_out"} < set(told)
    assert told["sentences_per_document"]["shares"] == {
        "1": 0.0, "2-4": 0.0, "5-19": 1.0, "20-99": 0.0, "100-999": 0.0, "1000+": 0.0,
    }  # fmt: skip
    assert told["languages"] == {"en": 1.0}
    assert set(told["findings"][0]) == {"severity", "title", "evidence", "advice"}
