"""A Diagnosis in, its findings out: each rule detects one common mistake in preparing text and says how to fix it.

The thresholds were measured on real English and Chinese text, intact and with each mistake applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bertworks.commands.doctor.diagnosis import Diagnosis, Finding, SimilarityTest, VocabularyFit

_ERROR, _WARNING, _NOTE = SEVERITIES = ("error", "warning", "note")

# Minimum sample sizes for a finding.
_MIN_DOCUMENTS = 20
_MIN_LETTERS = 500
_MIN_MARKS = 20

# Typical clean text has 2 to 5 % capitals, no space before commas, and few documents of a single sentence.
_MAX_SINGLE_SENTENCE_RATIO = 0.9
_FEW_DOCUMENTS = 3
_GIANT_SENTENCES = 300
_GIANT_CHARACTERS = 1_000_000
# Samples of 1,000 neighbouring pairs from English novels, Wikipedia, Chinese news and Chinese prose have z-scores
# of 5 to 22 (1.4 to 56 times the similarity of random pairs), and -2.2 to 2.5 (0.6 to 1.7 times) when shuffled.
# Compared with pairs of the same document they are 3 to 16 (1.2 to 12 times), and -2.7 to 2.2 (0.4 to 1.5 times) when
# shuffled. With 250 pairs a few samples overlap, so the threshold for fewer pairs is stricter.
_FEW_PAIRS, _MANY_PAIRS = 200, 500
_MIN_Z_SCORE_FEW_PAIRS, _MIN_Z_SCORE = 0.5, 2.5
_MIN_COHERENCE_RATIO = 1.15
_RUNNING_TEXT_RATIO, _RUNNING_TEXT_Z_SCORE = 2.0, 3.0
_MIN_CAPITAL_RATIO = 0.002
_MAX_SPACED_MARKS_RATIO = 0.3
_MAX_SPACED_IDEOGRAPHS_RATIO = 0.1
_ENOUGH_TOKENS = 1_000_000
_TOKENS_PER_WORD = 1.3  # of English in a vocabulary of 30,000


def find(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Return the findings, most severe first."""
    if not diagnosis.documents:
        return (_no_text(diagnosis),)
    findings = [finding for rule in _RULES for finding in rule(diagnosis)]
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _severity(value: float, warning: float, note: float = 0.0) -> str | None:
    """Return the severity of a ratio: None up to `note`, a note up to `warning`, a warning above."""
    if value <= note:
        return None
    return _WARNING if value > warning else _NOTE


def _format_excerpt(diagnosis: Diagnosis, name: str) -> str:
    excerpt = diagnosis.excerpts.get(name)
    return f", such as {excerpt}" if excerpt else ""


def _format_lines(number: int) -> str:
    return f"{number:,} line{'s' * (number != 1)}"


def _no_text(diagnosis: Diagnosis) -> Finding:
    summary = "; ".join(f"{name}: {number:,}" for name, number in diagnosis.cleaning.items()) or "nothing was read"
    return Finding(
        _ERROR,
        "There is no text",
        f"no document is left after cleaning ({summary}){_format_excerpt(diagnosis, 'dropped by cleaning')}",
        "check the names of the sources, --format and --field; for short texts, lower --min-characters of `bertworks "
        "prepare`",
    )


# ---------------------------------------------------------------- documents and their order


def _blank_line_after_every_sentence(diagnosis: Diagnosis) -> Iterator[Finding]:
    num_read = diagnosis.cleaning["documents read"]
    num_short = sum(
        number for name, number in diagnosis.cleaning.items() if name.startswith("documents dropped: shorter")
    )
    num_single = round((1 - diagnosis.pairable_ratio) * diagnosis.documents) + num_short
    if num_read < _MIN_DOCUMENTS or num_single < _MAX_SINGLE_SENTENCE_RATIO * num_read:
        return
    across = diagnosis.coherence.documents
    evidence = f"{num_single:,} of {num_read:,} documents have one sentence, so they yield no next-sentence pair"
    if across.ratio >= _RUNNING_TEXT_RATIO and across.z_score >= _RUNNING_TEXT_Z_SCORE:
        evidence += (
            f"; yet neighbouring documents have {across.ratio:.1f} times as many words in common as others, like the "
            f"sentences of running text"
        )
    yield Finding(
        _WARNING,
        "Nearly every document is a single sentence",
        evidence,
        "if there is a blank line after every sentence, keep blank lines between documents only (`awk NF in.txt > "
        "out.txt` removes them all); if the texts are single sentences, pretrain without NSP (`--set objective=mlm`)",
    )


def _giant_document(diagnosis: Diagnosis) -> Iterator[Finding]:
    few = diagnosis.documents <= _FEW_DOCUMENTS and diagnosis.sentences >= _GIANT_SENTENCES
    num_split = diagnosis.cleaning.get("documents split: longer than a block", 0)
    if not few and not (num_split and diagnosis.characters_per_document.median >= _GIANT_CHARACTERS):
        return
    evidence = f"{diagnosis.sentences:,} sentences in {diagnosis.documents:,} document(s)"
    if num_split:
        evidence += f", of which {num_split:,} had to be split because they are longer than a block"
    yield Finding(
        _WARNING,
        "The text is one giant document" if diagnosis.documents == 1 else "The text is a few giant documents",
        f"{evidence}; a random next sentence must come from another document, and whole documents are held out",
        "put a blank line between documents (articles, chapters, posts), or use one file per document; if each line is "
        "a document, `awk '{print; print \"\"}' in.txt > out.txt` adds a blank line after each",
    )


def _shuffled_sentences(diagnosis: Diagnosis) -> Iterator[Finding]:
    near, inside = diagnosis.coherence.sentences, diagnosis.coherence.within_documents
    advice = "use the text as it was before shuffling, or pretrain without NSP (`--set objective=mlm`)"
    if _seems_shuffled(near):
        yield Finding(
            _WARNING,
            "The sentences seem to be shuffled",
            f"neighbouring sentences have {near.ratio:.2f} times as many words in common as sentences far apart, which "
            f"may be chance ({near.z_score:.1f} standard errors, {near.num_pairs:,} pairs); in running text it is "
            f"twice to forty times",
            advice,
        )
    elif _seems_shuffled(inside):
        yield Finding(
            _WARNING,
            "The sentences of each document seem to be shuffled",
            f"neighbouring sentences have {inside.ratio:.2f} times as many words in common as distant ones of the same "
            f"document, which may be chance ({inside.z_score:.1f} standard errors, {inside.num_pairs:,} pairs); in "
            f"running text it is twice or more",
            advice,
        )


def _seems_shuffled(similarity: SimilarityTest) -> bool:
    if similarity.num_pairs < _FEW_PAIRS:
        return False
    if similarity.num_pairs < _MANY_PAIRS:
        return similarity.z_score < _MIN_Z_SCORE_FEW_PAIRS
    return similarity.z_score < _MIN_Z_SCORE or similarity.ratio < _MIN_COHERENCE_RATIO


def _duplicates(diagnosis: Diagnosis) -> Iterator[Finding]:
    about = "" if diagnosis.duplicates_exact else "about "
    severity = _severity(diagnosis.duplicate_documents_ratio, 0.2, 0.02)
    if severity and diagnosis.documents >= _MIN_DOCUMENTS:
        yield Finding(
            severity,
            "Documents occur more than once",
            f"{about}{diagnosis.duplicate_documents_ratio:.1%} of the documents are copies",
            "`bertworks prepare` keeps one of each but not of near-duplicates; check how the text was collected",
        )
    long_lines_ratio = diagnosis.duplicate_lines_ratio if diagnosis.long_lines >= _MIN_DOCUMENTS else 0.0
    severity = _severity(max(long_lines_ratio, diagnosis.copied_lines_ratio), 0.3, 0.1)
    if severity and diagnosis.lines >= _MIN_DOCUMENTS:
        yield Finding(
            severity,
            "Many lines are repeated",
            f"{diagnosis.copied_lines_ratio:.1%} of the lines, and {about}{long_lines_ratio:.1%} of the long ones, are "
            f"copies{_format_excerpt(diagnosis, 'copied lines')}",
            "remove menus, headers and licences before preparing; `bertworks prepare` keeps one of a long line that "
            "occurs more than --max-repeats times",
        )


# ---------------------------------------------------------------- processed text


def _lower_cased_text(diagnosis: Diagnosis) -> Iterator[Finding]:
    if diagnosis.cased_letters < _MIN_LETTERS or diagnosis.capital_ratio > _MIN_CAPITAL_RATIO:
        return
    if diagnosis.lowercase_starts_ratio < 0.5 or diagnosis.end_marks_ratio < 0.2:
        return
    fit = diagnosis.vocabulary
    is_harmless = fit is not None and not fit.properties.cased
    yield Finding(
        _NOTE if is_harmless else _WARNING,
        "The text is already lower-cased",
        f"{diagnosis.capital_ratio:.2%} of {diagnosis.cased_letters:,} letters are capitals"
        f"{_format_excerpt(diagnosis, 'sentences with lower-case start')}",
        "use an uncased vocabulary, or the original text: capitals also help to split sentences",
    )


def _tokenized_text(diagnosis: Diagnosis) -> Iterator[Finding]:
    artifacts = {name: number for name, number in diagnosis.tokenized_lines.items() if number > 0.01 * diagnosis.lines}
    evidence = [
        f"{_format_lines(number)} with {name}{_format_excerpt(diagnosis, f'tokenized: {name}')}"
        for name, number in artifacts.items()
    ]
    if diagnosis.spaced_marks >= _MIN_MARKS and diagnosis.spaced_marks_ratio > _MAX_SPACED_MARKS_RATIO:
        evidence.append(
            f"{diagnosis.spaced_marks_ratio:.0%} of commas and full stops have a space before them"
            f"{_format_excerpt(diagnosis, 'spaced marks')}"
        )
    if diagnosis.spaced_ideographs_ratio > _MAX_SPACED_IDEOGRAPHS_RATIO:
        evidence.append(
            f"{diagnosis.spaced_ideographs_ratio:.0%} of Chinese characters have a space after them"
            f"{_format_excerpt(diagnosis, 'spaced ideographs')}"
        )
    if evidence:
        yield Finding(
            _WARNING,
            "The text is already tokenized",
            "; ".join(evidence),
            "use the text as it was before tokenization, or detokenize it: a model trained on spaced text sees other "
            "spacing at inference, and ## or @@ become separate tokens",
        )


def _markup(diagnosis: Diagnosis) -> Iterator[Finding]:
    num_lines = sum(diagnosis.markup_lines.values())
    severity = _severity(num_lines / diagnosis.lines, 0.02, 0.002)
    if severity:
        evidence = "; ".join(
            f"{_format_lines(number)} with {name}{_format_excerpt(diagnosis, f'markup: {name}')}"
            for name, number in diagnosis.markup_lines.items()
            if number
        )
        yield Finding(
            severity,
            "Markup, code or data is left in the text",
            f"{evidence} (of {diagnosis.lines:,} lines)",
            "extract the running text first; name the format with --format where the files are Markdown, JSON Lines or "
            "a wiki dump, and the right column with --field",
        )


# ---------------------------------------------------------------- damage


def _damage(diagnosis: Diagnosis) -> Iterator[Finding]:
    for name, (title, warning_ratio, advice) in _DAMAGE.items():
        number = diagnosis.damaged_lines.get(name, 0)
        severity = _severity(number / diagnosis.lines, warning_ratio)
        if severity:
            evidence = f"{_format_lines(number)} with {name}{_format_excerpt(diagnosis, name)}"
            yield Finding(severity, title, evidence, advice)


# kind -> title, ratio of lines above which it is a warning, advice
_DAMAGE = {
    "mojibake, not repaired": (
        "Text was decoded with the wrong encoding and cannot be repaired",
        0.001,
        "convert the original text: `iconv -f gb18030 -t utf-8 in.txt > out.txt`; if it was "
        "converted wrongly, undo that first: `iconv -f utf-8 -t latin1` or `iconv -f utf-8 -t gb18030`",
    ),
    "mojibake, repaired by cleaning": (
        "Text was decoded with the wrong encoding",
        0.01,
        "cleaning repairs these lines; it is better to convert the original text once: "
        "`iconv -f cp1252 -t utf-8 in.txt > out.txt`",
    ),
    "replacement characters (U+FFFD)": (
        "Characters were lost",
        0.001,
        "U+FFFD replaces a character that a program could not decode; use the original text",
    ),
    "control characters": (
        "The text has control characters",
        0.05,
        "cleaning removes them; if there are many, the files may not be plain text",
    ),
    "bytes that are not UTF-8": (
        "Some lines are not UTF-8",
        0.05,
        "each was decoded with a matching encoding; check some of them, and convert the files with `iconv` if needed",
    ),
}


def _dropped_documents(diagnosis: Diagnosis) -> Iterator[Finding]:
    reasons = {
        name.removeprefix("documents dropped: "): number
        for name, number in diagnosis.cleaning.items()
        if name.startswith("documents dropped: ")
    }
    num_read = max(1, diagnosis.cleaning.get("documents read", 0))
    severity = _severity(sum(reasons.values()) / num_read, 0.2, 0.02)
    if severity:
        summary = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
        yield Finding(
            severity,
            "Cleaning drops documents",
            f"of {num_read:,}: {summary}{_format_excerpt(diagnosis, 'dropped by cleaning')}",
            "if they are good text, lower --min-characters of `bertworks prepare`; if documents end too early, check "
            "--lines and blank lines",
        )


# ---------------------------------------------------------------- vocabulary, held-out text, amount


def _unfit_vocabulary(diagnosis: Diagnosis) -> Iterator[Finding]:
    fit = diagnosis.vocabulary
    if fit is None or not fit.tokens:
        return
    advice = "train a vocabulary on this text (`bertworks vocab`), or choose one of its language"
    if fit.unknown_ratio > 0.01:
        is_chinese = diagnosis.scripts.get("Han", 0.0) > 0.2 and fit.properties.num_ideographs < 3_000
        yield Finding(
            _ERROR if fit.unknown_ratio > 0.1 else _WARNING,
            "The vocabulary does not cover Chinese" if is_chinese else "The vocabulary does not cover much of the text",
            f"{fit.unknown_ratio:.1%} of the tokens are unknown; most often: {' '.join(fit.unknown_words)}"
            f"{_format_excerpt(diagnosis, 'unknown tokens')}",
            advice + (", such as bert-base-chinese" if is_chinese else ""),
        )
    severity = _severity(fit.tokens_per_word, 2.0, 1.4)
    if severity:
        yield Finding(
            severity,
            "The vocabulary splits words into many tokens",
            f"{fit.tokens_per_word:.2f} tokens per word; a suitable vocabulary needs 1 to {_TOKENS_PER_WORD}",
            advice,
        )
    yield from _unfit_case(diagnosis, fit)


def _unfit_case(diagnosis: Diagnosis, fit: VocabularyFit) -> Iterator[Finding]:
    profile = fit.properties
    has_capitals = diagnosis.cased_letters >= _MIN_LETTERS and diagnosis.capital_ratio > _MIN_CAPITAL_RATIO
    if profile.cased and profile.kind == "wordpiece" and profile.capital_ratio < 0.001 and has_capitals:
        yield Finding(
            _WARNING,
            "An uncased vocabulary is used as a cased one",
            f"{profile.capital_ratio:.2%} of its Latin tokens have a capital letter, {diagnosis.capital_ratio:.1%} of "
            f"the text's letters are capitals",
            "set do_lower_case to true in its tokenizer_config.json, or choose a cased vocabulary",
        )
    elif not profile.cased and profile.capital_ratio > 0.02:
        yield Finding(
            _WARNING,
            "A cased vocabulary is used as an uncased one",
            f"{profile.capital_ratio:.0%} of its Latin tokens have a capital letter and can never be used",
            "set do_lower_case to false in its tokenizer_config.json, or choose an uncased vocabulary",
        )


def _held_out_text(diagnosis: Diagnosis) -> Iterator[Finding]:
    held_out = diagnosis.held_out
    if held_out is None:
        return
    ratio = max(held_out.shared_documents_ratio, held_out.shared_lines_ratio)
    severity = _ERROR if ratio > 0.1 else _severity(ratio, 0.005)
    if severity:
        about = "" if held_out.exact else "about "
        excerpt = _format_excerpt(diagnosis, "held-out documents") or _format_excerpt(diagnosis, "held-out lines")
        yield Finding(
            severity,
            "Held-out text occurs in the training text",
            f"{about}{held_out.shared_documents_ratio:.1%} of {held_out.documents:,} held-out documents and "
            f"{about}{held_out.shared_lines_ratio:.1%} of {held_out.long_lines:,} long lines{excerpt}",
            "remove these documents from the training text, or omit --held-out: `bertworks prepare` then holds out "
            "documents after deduplication",
        )


def _little_text(diagnosis: Diagnosis) -> Iterator[Finding]:
    fit = diagnosis.vocabulary
    num_tokens = fit.tokens if fit else round(_TOKENS_PER_WORD * diagnosis.words)
    if num_tokens < _ENOUGH_TOKENS:
        yield Finding(
            _NOTE,
            "There is little text to pretrain on",
            f"{'' if fit else 'about '}{num_tokens:,} tokens; BERT was trained on 3,300 million words",
            "add text, or continue pretraining a released model on this text (`bertworks adapt`)",
        )


def _skipped_files(diagnosis: Diagnosis) -> Iterator[Finding]:
    skipped = {name: number for name, number in diagnosis.cleaning.items() if name.startswith("files skipped: ")}
    if skipped:
        summary = ", ".join(f"{number:,} {name.removeprefix('files skipped: ')}" for name, number in skipped.items())
        yield Finding(
            _NOTE,
            "Files were skipped",
            summary,
            "to select files, name them or give a pattern such as 'folder/*.txt'",
        )


_RULES: tuple[Callable[[Diagnosis], Iterator[Finding]], ...] = (
    *(_blank_line_after_every_sentence, _giant_document, _shuffled_sentences, _duplicates),
    *(_lower_cased_text, _tokenized_text, _markup, _damage, _dropped_documents),
    *(_unfit_vocabulary, _held_out_text, _little_text, _skipped_files),
)
