"""Our WordPiece against a plain reference on real text: a data folder in, numbers of lines and differences out.

python benchmarks/tokenizer_parity.py DATA_FOLDER [--json] [--processes 2]

DATA_FOLDER holds vocab/ with the four released vocabularies, and the texts wikitext-2/, corpus-zh/ and chnsenticorp/.
The reference of tests/support reimplements Google's release; both `encode` and `encode_sentences` must give its tokens.
The uncased English and the Chinese vocabulary read every line that is not empty, the two cased ones every twentieth.
The exit code is 1 if a single line differs.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path

from bertworks.vocabulary.tokenizer import Tokenizer

REFERENCE = Path(__file__).parent.parent / "tests" / "support"
CORPORA = {
    "wikitext-2": ("train.txt.gz", "valid.txt", "test.txt"),
    "corpus-zh": ("modern.txt.gz", "clue-small-sample.txt"),
    "chnsenticorp": ("train.tsv", "dev.tsv", "test.tsv"),
}
# Vocabulary -> whether it is cased, and the step between the lines that are compared.
VOCABULARIES = {
    "bert-base-uncased": (False, 1),
    "bert-base-chinese": (False, 1),
    "bert-base-cased": (True, 20),
    "bert-base-multilingual-cased": (True, 20),
}
LINES_PER_BLOCK = 2_000
NUM_SHOWN = 5

ENGLISH, CHINESE = "I like playing soccer", "我喜欢踢足球"
PAIR_IDS = (101, 151, 8993, 8942, 8221, 11405, 10326, 102, 2769, 1599, 3614, 6677, 6639, 4413, 102)

# The file of a vocabulary, whether it is cased, the corpus, and the lines.
Block = tuple[Path, bool, str, list[str]]
# The vocabulary, the corpus, the number of lines, and those that differ.
Comparison = tuple[str, str, int, list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--json", action="store_true", help="one line of JSON: lines, differences")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    check_example(options.data)
    lines: Counter[tuple[str, str]] = Counter()
    differences: Counter[tuple[str, str]] = Counter()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for vocabulary, corpus, num_lines, different in pool.imap_unordered(compare, blocks(options.data)):
            lines[vocabulary, corpus] += num_lines
            differences[vocabulary, corpus] += len(different)
            for line in different[:NUM_SHOWN]:
                print(f"{vocabulary}, {corpus}: {line!a}", file=sys.stderr)
    if options.json:
        print(json.dumps({"lines": lines.total(), "differences": differences.total()}))
    else:
        show(lines, differences)
    sys.exit(1 if differences.total() else 0)


def check_example(data: Path) -> None:
    """Check the example of the paper's release: an English and a Chinese text with the Chinese vocabulary."""
    input_ids = Tokenizer.load(vocabulary_file(data, "bert-base-chinese")).encode(ENGLISH, CHINESE).input_ids
    if input_ids != PAIR_IDS:
        sys.exit(f"the example gives {input_ids} instead of {PAIR_IDS}")


def blocks(data: Path) -> Iterator[Block]:
    for vocabulary, (cased, step) in VOCABULARIES.items():
        for corpus, names in CORPORA.items():
            stream = (line for name in names for line in lines_of(data / corpus / name))
            sample = islice(stream, 0, None, step)
            while block := list(islice(sample, LINES_PER_BLOCK)):
                yield vocabulary_file(data, vocabulary), cased, corpus, block


def lines_of(path: Path) -> Iterator[str]:
    # Only "\n" ends a line here: all other separators must reach the tokenizers.
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for line in file:
            if line != b"\n":
                yield line.decode("utf-8").removesuffix("\n")


def vocabulary_file(data: Path, vocabulary: str) -> Path:
    return data / "vocab" / f"{vocabulary}-vocab.txt"


def compare(block: Block) -> Comparison:
    """Tokenize each line of a block in three ways."""
    path, cased, corpus, lines = block
    ours = tokenizer(path)
    expected = [reference_ids(line, path, cased) for line in lines]
    tokens = ours.encode_sentences(lines)
    input_ids, ends = tokens.input_ids.tolist(), tokens.sentence_ends.tolist()
    different = []
    for line, expected_ids, (start, end) in zip(lines, expected, pairwise([0, *ends]), strict=True):
        if not list(ours.encode(line).input_ids[1:-1]) == input_ids[start:end] == expected_ids:
            different.append(line)
    return path.name.removesuffix("-vocab.txt"), corpus, len(lines), different


def reference_ids(line: str, path: Path, cased: bool) -> list[int]:
    token_ids = vocabulary_ids(path)
    return [token_ids[token] for token in reference()(line, token_ids, not cased)]


@functools.cache
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


@functools.cache
def vocabulary_ids(path: Path) -> dict[str, int]:
    # Read as in the release, so that our reader is compared too.
    lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    return {line.strip(): number for number, line in enumerate(lines)}


@functools.cache
def reference() -> Callable[[str, dict[str, int], bool], list[str]]:
    sys.path.insert(0, str(REFERENCE))
    tokenize: Callable[[str, dict[str, int], bool], list[str]] = importlib.import_module(
        "reference_wordpiece"
    ).reference_tokens
    return tokenize


def show(lines: Counter[tuple[str, str]], differences: Counter[tuple[str, str]]) -> None:
    print(f"{'vocabulary':<30}{'text':<16}{'lines':>9}{'differences':>13}")
    for vocabulary, corpus in lines:
        num_lines, num_different = lines[vocabulary, corpus], differences[vocabulary, corpus]
        print(f"{vocabulary:<30}{corpus:<16}{num_lines:>9,}{num_different:>13,}")
    print(f"{'together':<46}{lines.total():>9,}{differences.total():>13,}")


if __name__ == "__main__":
    main()
