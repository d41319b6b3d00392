"""`bertworks word-vectors`: train static word vectors, evaluate them, look words up, and convert between formats."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertworks.choices import FEATURE_STRATEGIES, WORD_CONTEXTS, WORD_VECTOR_FORMATS, WORD_VECTOR_KINDS
from bertworks.cli.command import Command, CommandGroup, choice, command_app
from bertworks.cli.console import say
from bertworks.cli.options import AsJson, Field, Format, Sources, TopK, Workers
from bertworks.cli.progress import show_progress
from bertworks.errors import SettingsError
from bertworks.progress import begin_stage

if TYPE_CHECKING:
    from rich.table import Table

    from bertworks.embeddings.static import Neighbor, StaticVectors
    from bertworks.embeddings.static_settings import GloveSettings, Word2VecSettings
    from bertworks.metrics.word_vectors import SectionScore, Similarity

app = command_app(
    CommandGroup,
    "Static word vectors: one vector per word, whatever its context. VECTORS is a folder written by `word-vectors "
    "train`, or a file of word2vec (text or binary) or GloVe, compressed or not.",
)

Vectors = Annotated[Path, typer.Argument(help="A folder written by `word-vectors train`, or a word2vec or GloVe file.")]
_DEFAULT = "; the default depends on the kind."


@app.command("train", cls=Command)
def train_command(
    sources: Sources,
    output: Annotated[Path, typer.Option(help="Folder to write the vectors to.")],
    kind: Annotated[str, choice("kind", WORD_VECTOR_KINDS, "Algorithm.")] = "skip-gram",
    vector_size: Annotated[int, typer.Option(help="Dimension of the vectors.")] = 100,
    window: Annotated[int | None, typer.Option(help=f"Context words on each side{_DEFAULT}")] = None,
    epochs: Annotated[int | None, typer.Option(help=f"Passes over the text{_DEFAULT}")] = None,
    learning_rate: Annotated[float | None, typer.Option(help=f"Initial learning rate{_DEFAULT}")] = None,
    min_count: Annotated[int, typer.Option(help="Minimum frequency of a word.")] = 5,
    max_words: Annotated[
        int, typer.Option(help="Maximum vocabulary size, most frequent words first; 0: all.")
    ] = 400_000,
    cased: Annotated[bool, typer.Option("--cased", help="Keep case instead of lower-casing.")] = False,
    punctuation: Annotated[bool, typer.Option("--punctuation", help="Treat punctuation marks as words.")] = False,
    context: Annotated[str, choice("context", WORD_CONTEXTS, "Where context windows end.")] = WORD_CONTEXTS[0],
    negative: Annotated[int | None, typer.Option(help="Negative samples per word (Word2Vec).")] = None,
    sample: Annotated[float | None, typer.Option(help="Subsampling threshold of frequent words (Word2Vec).")] = None,
    x_max: Annotated[float | None, typer.Option(help="Count from which co-occurrences weigh 1 (GloVe).")] = None,
    alpha: Annotated[float | None, typer.Option(help="Exponent of the weighting function (GloVe).")] = None,
    memory_mb: Annotated[int | None, typer.Option(help="Memory for counting co-occurrences, in MiB (GloVe).")] = None,
    seed: Annotated[int, typer.Option(help="Random seed: the same text, settings and seed give the same bytes.")] = 0,
    threads: Annotated[
        int, typer.Option(min=1, help="Training threads; Word2Vec with more than one is not reproducible.")
    ] = 1,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train a vector for each word of the SOURCEs: GloVe, or Word2Vec as skip-gram or CBOW (needs gensim).

    A single SOURCE may be a corpus folder written by `bertworks prepare`: its training documents are read. English is
    split at anything but letters and digits, Chinese by jieba. Words without a vector are counted.
    """
    from bertworks.commands.word_vectors import VectorsRequest, train_vectors
    from bertworks.embeddings.static_words import WordSettings
    from bertworks.text.sources import ReadSettings

    options = {
        "window": window, "epochs": epochs, "learning_rate": learning_rate, "negative": negative, "sample": sample,
        "x_max": x_max, "alpha": alpha, "memory_mb": memory_mb,
    }  # fmt: skip
    training = replace(_settings(kind, options), vector_size=vector_size, seed=seed, threads=threads)
    words = WordSettings(
        cased=cased, punctuation=punctuation, context=context, min_count=min_count, max_words=max_words
    )
    request = VectorsRequest(
        sources=tuple(sources),
        output=output,
        kind=kind,
        training_settings=training,
        word_settings=words,
        read_settings=ReadSettings(format=format, field=field),
    )
    with show_progress() as on_progress:
        vectors = train_vectors(request, workers, on_progress)
    _show_training_report(vectors, output, as_json)


@app.command("eval", cls=Command)
def eval_command(
    vectors: Vectors,
    files: Annotated[
        list[Path],
        typer.Argument(help="Two words and a score per line, or four words per line.", metavar="FILE…"),
    ],
    as_json: AsJson = False,
) -> None:
    """Evaluate VECTORS on word similarity and analogy lists.

    Two words and a score per line (WordSim-353, SimLex-999): Spearman correlation of cosines and scores, over the pairs
    of which both words have a vector. Four words per line, with lines like ": family" that begin a section (the Google
    analogies): accuracy of a : b = c : ? by nearest neighbor of b - a + c, by section. Pairs and questions left out for
    lack of a vector are counted.
    """
    from rich.console import Console

    from bertworks.commands.word_vectors import evaluate_vectors
    from bertworks.embeddings.static_files import read_vectors
    from bertworks.metrics.word_vectors import Similarity

    with show_progress() as on_progress:
        on_progress(begin_stage("evaluating the vectors"))
        scores = evaluate_vectors(read_vectors(vectors), files)
    if as_json:
        print(json.dumps({name: _score_to_dict(score) for name, score in scores.items()}, ensure_ascii=False))
        return
    for name, score in scores.items():
        if isinstance(score, Similarity):
            say(f"{name}: Spearman {score.spearman:.4f} over {score.num_known:,} of {score.num_pairs:,} pairs")
        else:
            say(f"{name}:")
            Console().print(_section_table(score))


@app.command("nearest", cls=Command)
def nearest_command(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(help="One or more words.", metavar="WORD…")],
    top_k: TopK = 10,
    as_json: AsJson = False,
) -> None:
    """Print the nearest neighbors of each WORD by cosine similarity."""
    from bertworks.embeddings.static_files import read_vectors

    table = read_vectors(vectors)
    neighbors = {word: table.most_similar(word, top_k) for word in words}
    if as_json:
        print(json.dumps({word: _neighbors_to_dicts(near) for word, near in neighbors.items()}, ensure_ascii=False))
        return
    for word, near in neighbors.items():
        if len(neighbors) > 1:
            say(f"{word}:")
        _show_neighbors(near)


@app.command("analogy", cls=Command)
def analogy_command(
    vectors: Vectors,
    first: Annotated[str, typer.Argument(help="for example man")],
    second: Annotated[str, typer.Argument(help="king")],
    third: Annotated[str, typer.Argument(help="woman")],
    top_k: TopK = 5,
    as_json: AsJson = False,
) -> None:
    """Solve FIRST : SECOND = THIRD : ? by the nearest neighbors of SECOND - FIRST + THIRD."""
    from bertworks.embeddings.static_files import read_vectors

    near = read_vectors(vectors).analogy(first, second, third, top_k)
    if as_json:
        print(json.dumps(_neighbors_to_dicts(near), ensure_ascii=False))
        return
    _show_neighbors(near)


@app.command("senses", cls=Command)
def senses_command(
    word: Annotated[str, typer.Argument(help="A word with several senses.")],
    file: Annotated[Path, typer.Argument(help="A table of sentences (text) and the sense of the word there (label).")],
    models: Annotated[list[str], typer.Argument(help="Folders of word vectors, or any models.", metavar="MODEL…")],
    output: Annotated[Path, typer.Option(help="SVG file to write.")],
    layers: Annotated[str, choice("layer strategy", FEATURE_STRATEGIES, "Which hidden states to use.")] = "last",
) -> None:
    """Plot the vectors of WORD in the sentences of FILE, by each MODEL.

    A static model has one vector for a word, whatever its sense; a contextual model has one per sentence, and senses
    form clusters as far as the model distinguishes them.
    """
    from bertworks.commands.senses import SensesRequest, senses

    for panel in senses(SensesRequest(word=word, file=file, models=tuple(models), output=output, layers=layers)):
        result = panel.projection
        say(
            f"{panel.name}: {result.num_distinct_vectors} distinct vectors; nearest neighbor of the same sense "
            f"{result.nearest_neighbor_accuracy:.0%}; mean cosine {result.within_similarity:.2f} within a sense, "
            f"{result.across_similarity:.2f} across senses"
        )
    say(f"figure: {output}")


@app.command("convert", cls=Command)
def convert_command(
    vectors: Vectors,
    output: Annotated[Path, typer.Option(help="File or folder to write.")],
    format: Annotated[str, choice("format", WORD_VECTOR_FORMATS, "Output format.")] = "folder",  # noqa: A002
) -> None:
    """Convert VECTORS to another format: word2vec or GloVe files for other tools, or a folder of ours. Lossless."""
    from bertworks.commands.word_vectors import convert_vectors

    with show_progress() as on_progress:
        on_progress(begin_stage("converting the vectors"))
        table = convert_vectors(vectors, output, format)
    say(f"{len(table):,} words, vectors of size {table.vector_size}: {output}")


def _settings(kind: str, options: dict[str, Any]) -> GloveSettings | Word2VecSettings:
    """Return the settings of a kind with the given options; refuse an option that the kind does not have."""
    from bertworks.embeddings.static_settings import KINDS

    field_names = {field.name for field in fields(KINDS[kind])}
    values = {name: value for name, value in options.items() if value is not None}
    for name in values:
        if name not in field_names:
            raise SettingsError(f"--{name.replace('_', '-')} has no effect on {kind}; leave it out")
    return replace(KINDS[kind], **values)


def _show_training_report(vectors: StaticVectors, output: Path, as_json: bool) -> None:
    if as_json:
        values = {**vectors.metadata, "words": len(vectors), "vector_size": vectors.vector_size}
        print(json.dumps(values, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_row(f"{len(vectors):,}", f"words, vectors of size {vectors.vector_size} ({vectors.metadata['kind']})")
    table.add_row(f"{vectors.metadata['corpus']['num_words']:,}", "words of training text")
    for name, count in vectors.metadata["counts"].items():
        table.add_row(f"{count:,}", Text(name))
    Console().print(table)
    threads = vectors.metadata["settings"]["threads"]
    if threads > 1 and vectors.metadata["kind"] != "glove":
        say(f"trained with {threads} threads: not reproducible")
    say(f"vectors: {output}")


def _section_table(scores: list[SectionScore]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from bertworks.metrics.word_vectors import total

    table = Table(box=None, header_style="bold")
    table.add_column("section")
    for name in ("correct", "known", "questions", "accuracy"):
        table.add_column(name, justify="right")
    for score in [*scores, total(scores)]:
        numbers = (score.num_correct, score.num_known, score.num_questions)
        table.add_row(Text(score.section), *(f"{number:,}" for number in numbers), f"{score.accuracy:.1%}")
    return table


def _score_to_dict(score: Similarity | list[SectionScore]) -> Any:
    from bertworks.metrics.word_vectors import Similarity, total

    if isinstance(score, Similarity):
        return asdict(score)
    return [{**asdict(section), "accuracy": section.accuracy} for section in [*score, total(score)]]


def _neighbors_to_dicts(neighbors: list[Neighbor]) -> list[dict[str, Any]]:
    return [neighbor._asdict() for neighbor in neighbors]


def _show_neighbors(neighbors: list[Neighbor]) -> None:
    for neighbor in neighbors:
        print(f"{neighbor.cosine:7.4f}  {neighbor.word}")
