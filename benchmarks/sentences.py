"""Our sentence splitter against four libraries: hand-labelled paragraphs in, a table of F1 and MB/s out.

python benchmarks/sentences.py [--english PATH] [--chinese PATH] [--plain] [--json]

PATH is a text file or a folder of them, plain or .gz, one paragraph per line, for the speed; without it the labelled
paragraphs are repeated. A megabyte is a million bytes of UTF-8; seconds are CPU seconds over all threads, so that
threads do not count as speed. --plain scores only the paragraphs without quotation marks and ；, where our labels
follow a convention that a library need not share.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

LABELLED = Path(__file__).parent.parent / "tests" / "text" / "sentences.txt"
ROUNDS = 3
SECONDS_PER_ROUND = 1.0
SPEED_BYTES = 4_000_000
CONVENTION_CHARACTERS = set('"“”「」『』«»；')

Splitter = Callable[[str], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Score:
    """Precision, recall and F1 of sentence boundaries."""

    precision: float
    recall: float
    f1: float


def read_labelled(path: Path) -> dict[str, list[list[str]]]:
    """Section -> paragraphs -> sentences of the labelled file; its format is described at its top."""
    sections: dict[str, list[list[str]]] = {}
    paragraphs: list[list[str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line in ("[en]", "[zh]", "[other]"):
            paragraphs = sections.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            paragraphs.append(line.split("|"))
    return sections


def score(split: Splitter, paragraphs: list[list[str]]) -> Score:
    """Compare where all sentences but the first begin."""
    num_correct = num_predicted = num_labelled = 0
    for sentences in paragraphs:
        text = "".join(sentences)
        labelled, predicted = set(_starts(text, sentences)), set(_starts(text, split(text)))
        num_correct += len(labelled & predicted)
        num_predicted += len(predicted)
        num_labelled += len(labelled)
    return Score(
        precision=num_correct / max(num_predicted, 1),
        recall=num_correct / max(num_labelled, 1),
        f1=2 * num_correct / max(num_predicted + num_labelled, 1),
    )


def _starts(text: str, sentences: Iterable[str]) -> Iterator[int]:
    """Yield where each sentence but the first begins, without the white space around it, which libraries may drop."""
    offset = 0
    for index, sentence in enumerate(filter(None, map(str.strip, sentences))):
        start = text.find(sentence, offset)
        if start < 0:
            raise ValueError(f"the sentence {sentence!r} is not in {text!r} after character {offset}")
        offset = start + len(sentence)
        if index:
            yield start


def _ours(language: str) -> Splitter:
    from bertworks.text.sentences import split_sentences

    return split_sentences


def _pysbd(language: str) -> Splitter:
    segmenter = importlib.import_module("pysbd").Segmenter(language=language, clean=False)
    return lambda text: [str(sentence) for sentence in segmenter.segment(text)]


def _syntok(language: str) -> Splitter:
    analyze = importlib.import_module("syntok.segmenter").analyze
    return lambda text: [
        "".join(token.spacing + token.value for token in sentence)
        for paragraph in analyze(text)
        for sentence in paragraph
    ]


def _blingfire(language: str) -> Splitter:
    to_sentences = importlib.import_module("blingfire").text_to_sentences
    return lambda text: str(to_sentences(text)).split("\n")


def _sentencex(language: str) -> Splitter:
    segment = importlib.import_module("sentencex").segment
    return lambda text: list(segment(language, text))


SPLITTERS = {
    "bertworks": _ours,
    "pysbd": _pysbd,
    "syntok": _syntok,
    "blingfire": _blingfire,
    "sentencex": _sentencex,
}
# These need to know the language, so they do not take the section of several languages.
ONE_LANGUAGE = ("pysbd", "sentencex")


def _is_plain(sentences: list[str]) -> bool:
    return CONVENTION_CHARACTERS.isdisjoint("".join(sentences))


def _paragraphs(path: Path | None, labelled: list[list[str]]) -> list[str]:
    """Return about SPEED_BYTES of text in whole paragraphs, to measure the speed."""
    if path is None:
        texts = ["".join(sentences) for sentences in labelled]
        return texts * (1 + SPEED_BYTES // sum(len(text.encode()) for text in texts))
    paragraphs: list[str] = []
    num_bytes = 0
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for line in data.decode("utf-8").splitlines():
            if num_bytes >= SPEED_BYTES:
                return paragraphs
            if line:
                paragraphs.append(line)
                num_bytes += len(line.encode())
    return paragraphs


def _megabytes_per_second(split: Splitter, paragraphs: list[str]) -> float:
    """Split as many paragraphs as fit in SECONDS_PER_ROUND of CPU time."""
    start = time.process_time()
    num_paragraphs = 0
    for text in paragraphs:
        split(text)
        num_paragraphs += 1
        if num_paragraphs % 16 == 0 and time.process_time() - start > SECONDS_PER_ROUND:
            break
    seconds = time.process_time() - start
    return sum(len(text.encode()) for text in paragraphs[:num_paragraphs]) / 1e6 / seconds


def measure(
    labelled: dict[str, list[list[str]]], paths: dict[str, Path | None]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return splitter -> section -> precision, recall, F1 and, for English and Chinese, MB/s; {} if not installed."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name, load in SPLITTERS.items():
        results[name] = {}
        for section, paragraphs in labelled.items():
            if section == "other" and name in ONE_LANGUAGE:
                continue
            try:
                results[name][section] = asdict(score(load(section), paragraphs))
            except ModuleNotFoundError:
                break
    for section, path in paths.items():
        texts = _paragraphs(path, labelled[section])
        splitters = {name: SPLITTERS[name](section) for name in results if section in results[name]}
        # Round by round, so that other load on the machine affects all of them.
        speeds = [
            {name: _megabytes_per_second(split, texts) for name, split in splitters.items()} for _ in range(ROUNDS)
        ]
        for name in splitters:
            results[name][section]["megabytes_per_second"] = statistics.median(speed[name] for speed in speeds)
    return results


def _print_table(results: dict[str, dict[str, dict[str, float]]]) -> None:
    print("| splitter | English P / R / F1 | MB/s | Chinese P / R / F1 | MB/s | other F1 |")
    print("|---|---|---|---|---|---|")
    for name, sections in results.items():
        if not sections:
            print(f"| {name} | not measured: not installed | | | | |")
            continue
        cells = []
        for section in ("en", "zh"):
            values = sections[section]
            cells.append(f"{values['precision']:.3f} / {values['recall']:.3f} / **{values['f1']:.3f}**")
            cells.append(f"{values['megabytes_per_second']:.2f}")
        cells.append(f"{sections['other']['f1']:.3f}" if "other" in sections else "–")
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare sentence splitters by F1 and speed.")
    parser.add_argument("--english", type=Path, help="text file or folder for the speed in English")
    parser.add_argument("--chinese", type=Path, help="text file or folder for the speed in Chinese")
    parser.add_argument("--plain", action="store_true", help="leave out labelled paragraphs with quotations or ；")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of the table")
    options = parser.parse_args()
    labelled = read_labelled(LABELLED)
    if options.plain:
        labelled = {section: list(filter(_is_plain, paragraphs)) for section, paragraphs in labelled.items()}
    results = measure(labelled, {"en": options.english, "zh": options.chinese})
    if options.json:
        print(json.dumps({"benchmark": "sentences", "results": results}, ensure_ascii=False))
    else:
        _print_table(results)


if __name__ == "__main__":
    main()
