"""A Diagnosis in, its findings out: each rule knows one mistake that people make with text, its trace and its cure.

Thresholds come from real text, English and Chinese, as it is and as it looks after the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bertworks.commands.doctor.diagnosis import Diagnosis, Finding, SimilarityTest, VocabularyFit

_ERROR, _WARNING, _NOTE = SEVERITIES = ("error", "warning", "note")

# Fewer documents, letters or marks are too few to judge by.
_MIN_DOCUMENTS = 20
_MIN_LETTERS = 500
_MIN_MARKS = 20

# Most clean text has 2 to 5 % capitals, none of its commas behind a space, and no lone sentences as documents.
_MAX_SINGLE_SENTENCE_RATIO = 0.9
_FEW_DOCUMENTS = 3
_GIANT_SENTENCES = 300
_GIANT_CHARACTERS = 1_000_000
# Samples of 1,000 neighbouring pairs from English novels, Wikipedia articles, Chinese news and modern Chinese prose lie
# 5 to 22 standard errors above chance as they are (1.4 to 56 times the likeness of others), and -2.2 to 2.5 (0.6 to 1.7
# times) when shuffled. Against others of the same document it is 3 to 16 errors (1.2 to 12 times), and -2.7 to 2.2 (0.4
# to 1.5 times) when shuffled. With 250 pairs a few samples overlap, so that fewer pairs need a clearer sign.
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
    """Return what is wrong with the text, the worst first."""
    if not diagnosis.documents:
        return (_no_text(diagnosis),)
    findings = [finding for rule in _RULES for finding in rule(diagnosis)]
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _severity(value: float, warning: float, note: float = 0.0) -> str | None:
    """Return the severity of a share: None up to `note`, a note up to `warning`, a warning above."""
    if value <= note:
        return None
    return _WARNING if value > warning else _NOTE


def _format_excerpt(diagnosis: Diagnosis, name: str) -> str:
    example = diagnosis.excerpts.get(name)
    return f", such as {example}" if example else ""


def _format_lines(number: int) -> str:
    return f"{number:,} line{'s' * (number != 1)}"


def _no_text(diagnosis: Diagnosis) -> Finding:
    told = "; ".join(f"{name}: {number:,}" for name, number in diagnosis.cleaning.items()) or "nothing was read"
    return Finding(
        _ERROR,
        "There is no text",
        f"no document is left after cleaning ({told}){_format_excerpt(diagnosis, 'dropped by cleaning')}",
        "check the names of the sources, --format and --field; short texts need a lower --min-characters",
    )


# ---------------------------------------------------------------- documents and their order


def _blank_line_after_every_sentence(diagnosis: Diagnosis) -> Iterator[Finding]:
    num_read = diagnosis.cleaning["documents read"]
    num_short = sum(
        number for name, number in diagnosis.cleaning.items() if name.startswith("documents dropped: shorter")
    )
    num_lone = round((1 - diagnosis.pairable_ratio) * diagnosis.documents) + num_short
    if num_read < _MIN_DOCUMENTS or num_lone < _MAX_SINGLE_SENTENCE_RATIO * num_read:
        return
    across = diagnosis.coherence.documents
    evidence = f"{num_lone:,} of {num_read:,} documents have one sentence, so they give no next-sentence pair"
    if across.ratio >= _RUNNING_TEXT_RATIO and across.z_score >= _RUNNING_TEXT_Z_SCORE:
        evidence += (
            f"; yet neighbouring documents have {across.ratio:.1f} times as many words in common as others, as the "
            f"sentences of a running text do"
        )
    yield Finding(
        _WARNING,
        "Nearly every document is a single sentence",
        evidence,
        "if a blank line stands after every sentence, keep blank lines between documents only (`awk NF in.txt > "
        "out.txt` removes them all); if these are texts of one sentence, pretrain without next-sentence pairs",
    )


def _giant_document(diagnosis: Diagnosis) -> Iterator[Finding]:
    few = diagnosis.documents <= _FEW_DOCUMENTS and diagnosis.sentences >= _GIANT_SENTENCES
    cut = diagnosis.cleaning.get("documents cut: longer than a block", 0)
    if not few and not (cut and diagnosis.characters_per_document.median >= _GIANT_CHARACTERS):
        return
    evidence = f"{diagnosis.sentences:,} sentences in {diagnosis.documents:,} document(s)"
    if cut:
        evidence += f", of which {cut:,} had to be cut because longer than a block"
    yield Finding(
        _WARNING,
        "The text is one giant document" if diagnosis.documents == 1 else "The text is a few giant documents",
        f"{evidence}; a random next sentence must come from another document, and whole documents are held out",
        "put a blank line between documents (articles, chapters, posts), or give one file a document; if each line is "
        "a document, `awk '{print; print \"\"}' in.txt > out.txt` puts a blank line behind each",
    )


def _shuffled_sentences(diagnosis: Diagnosis) -> Iterator[Finding]:
    near, inside = diagnosis.coherence.sentences, diagnosis.coherence.within_documents
    advice = "take the text as it was before it was shuffled, or pretrain without next-sentence pairs"
    if _seems_shuffled(near):
        yield Finding(
            _WARNING,
            "The sentences seem to be shuffled",
            f"neighbouring sentences have {near.ratio:.2f} times as many words in common as sentences far apart, which "
            f"may be chance ({near.z_score:.1f} standard errors, {near.num_pairs:,} pairs); in running text it is twice "
            f"to forty times",
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
            "Documents stand there more than once",
            f"{about}{diagnosis.duplicate_documents_ratio:.1%} of the documents are copies",
            "`bertworks prepare` keeps one of each; look at how the text was gathered, since nearly equal copies stay",
        )
    long_rate = diagnosis.duplicate_lines_ratio if diagnosis.long_lines >= _MIN_DOCUMENTS else 0.0
    severity = _severity(max(long_rate, diagnosis.copied_lines_ratio), 0.3, 0.1)
    if severity and diagnosis.lines >= _MIN_DOCUMENTS:
        yield Finding(
            severity,
            "Many lines are the same",
            f"{diagnosis.copied_lines_ratio:.1%} of the lines, and {about}{long_rate:.1%} of the long ones, are copies"
            f"{_format_excerpt(diagnosis, 'copied lines')}",
            "remove menus, headers and licences before preparing; `bertworks prepare` keeps one of a long line that "
            "occurs more than --max-repeats times",
        )


# ---------------------------------------------------------------- what was done to the text


def _lower_cased_text(diagnosis: Diagnosis) -> Iterator[Finding]:
    if diagnosis.cased_letters < _MIN_LETTERS or diagnosis.capital_ratio > _MIN_CAPITAL_RATIO:
        return
    if diagnosis.lowercase_starts_ratio < 0.5 or diagnosis.end_marks_ratio < 0.2:
        return
    fit = diagnosis.vocabulary
    harmless = fit is not None and not fit.properties.cased
    yield Finding(
        _NOTE if harmless else _WARNING,
        "The text is already lower-cased",
        f"{diagnosis.capital_ratio:.2%} of {diagnosis.cased_letters:,} letters are capitals"
        f"{_format_excerpt(diagnosis, 'sentences that begin with a small letter')}",
        "use an uncased vocabulary, or the text with its capitals, which also show where sentences begin",
    )


def _tokenized_text(diagnosis: Diagnosis) -> Iterator[Finding]:
    marks = {name: number for name, number in diagnosis.tokenized_lines.items() if number > 0.01 * diagnosis.lines}
    evidence = [
        f"{_format_lines(number)} with {name}{_format_excerpt(diagnosis, f'tokenized: {name}')}"
        for name, number in marks.items()
    ]
    if diagnosis.spaced_marks >= _MIN_MARKS and diagnosis.spaced_marks_ratio > _MAX_SPACED_MARKS_RATIO:
        evidence.append(
            f"{diagnosis.spaced_marks_ratio:.0%} of commas and full stops have a space in front"
            f"{_format_excerpt(diagnosis, 'spaced marks')}"
        )
    if diagnosis.spaced_ideographs_ratio > _MAX_SPACED_IDEOGRAPHS_RATIO:
        evidence.append(
            f"{diagnosis.spaced_ideographs_ratio:.0%} of Chinese characters have a space behind them"
            f"{_format_excerpt(diagnosis, 'spaced ideographs')}"
        )
    if evidence:
        yield Finding(
            _WARNING,
            "The text is already tokenized",
            "; ".join(evidence),
            "take the text as it was before it was cut into words or pieces, or join it again: a model trained on "
            "spaced text meets other spacing later, and ## or @@ become pieces of their own",
        )


def _markup(diagnosis: Diagnosis) -> Iterator[Finding]:
    num_lines = sum(diagnosis.markup_lines.values())
    severity = _severity(num_lines / diagnosis.lines, 0.02, 0.002)
    if severity:
        told = "; ".join(
            f"{_format_lines(number)} with {name}{_format_excerpt(diagnosis, f'markup: {name}')}"
            for name, number in diagnosis.markup_lines.items()
            if number
        )
        yield Finding(
            severity,
            "Markup, code or data is left in the text",
            f"{told} (of {diagnosis.lines:,} lines)",
            "extract the running text first; name the format with --format where the files are Markdown, JSON Lines or "
            "a wiki dump, and the right column with --field",
        )


# ---------------------------------------------------------------- damage


def _damage(diagnosis: Diagnosis) -> Iterator[Finding]:
    for name, (title, warning_rate, advice) in _DAMAGE.items():
        number = diagnosis.damaged_lines.get(name, 0)
        severity = _severity(number / diagnosis.lines, warning_rate)
        if severity:
            evidence = f"{_format_lines(number)} with {name}{_format_excerpt(diagnosis, name)}"
            yield Finding(severity, title, evidence, advice)


# kind -> title, the share of lines from which on it is a warning, what to do
_DAMAGE = {
    "mojibake, not repaired": (
        "Text was read in the wrong encoding and cannot be repaired here",
        0.001,
        "take the text as it was before and convert it: `iconv -f gb18030 -t utf-8 in.txt > out.txt`; where it was "
        "converted wrongly, go back first: `iconv -f utf-8 -t latin1` or `iconv -f utf-8 -t gb18030`",
    ),
    "mojibake, repaired by cleaning": (
        "Text was read in the wrong encoding",
        0.01,
        "cleaning repairs these lines; better take the text as it was before and convert it once: "
        "`iconv -f cp1252 -t utf-8 in.txt > out.txt`",
    ),
    "replacement characters (U+FFFD)": (
        "Characters were lost",
        0.001,
        "U+FFFD stands where a program could not read a character; take the text as it was before that",
    ),
    "control characters": (
        "Control characters stand in the text",
        0.05,
        "cleaning removes them; if there are many, the files may hold more than text",
    ),
    "bytes that are not UTF-8": (
        "Some lines are not UTF-8",
        0.05,
        "each was read in the encoding that fits it; check some of them, and convert the files with `iconv` if need be",
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
        told = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
        yield Finding(
            severity,
            "Cleaning drops documents",
            f"of {num_read:,}: {told}{_format_excerpt(diagnosis, 'dropped by cleaning')}",
            "if they are good text, lower --min-characters; if documents end too early, check --lines and blank lines",
        )


# ---------------------------------------------------------------- vocabulary, held-out text, amount


def _unfit_vocabulary(diagnosis: Diagnosis) -> Iterator[Finding]:
    fit = diagnosis.vocabulary
    if fit is None or not fit.tokens:
        return
    learn = "learn a vocabulary from this text (`bertworks vocab`), or choose one of its language"
    if fit.unknown_ratio > 0.01:
        chinese = diagnosis.scripts.get("Han", 0.0) > 0.2 and fit.properties.num_ideographs < 3_000
        yield Finding(
            _ERROR if fit.unknown_ratio > 0.1 else _WARNING,
            "The vocabulary does not know Chinese" if chinese else "The vocabulary does not know much of the text",
            f"{fit.unknown_ratio:.1%} of the pieces are unknown; most often: {' '.join(fit.unknown_words)}"
            f"{_format_excerpt(diagnosis, 'unknown pieces')}",
            learn + (": of Google's, bert-base-chinese" if chinese else ""),
        )
    severity = _severity(fit.tokens_per_word, 2.0, 1.4)
    if severity:
        yield Finding(
            severity,
            "The vocabulary cuts words into many pieces",
            f"{fit.tokens_per_word:.2f} pieces a word; a vocabulary that fits needs 1 to {_TOKENS_PER_WORD}",
            learn,
        )
    yield from _unfit_case(diagnosis, fit)


def _unfit_case(diagnosis: Diagnosis, fit: VocabularyFit) -> Iterator[Finding]:
    nature = fit.properties
    has_capitals = diagnosis.cased_letters >= _MIN_LETTERS and diagnosis.capital_ratio > _MIN_CAPITAL_RATIO
    if nature.cased and nature.kind == "wordpiece" and nature.capital_ratio < 0.001 and has_capitals:
        yield Finding(
            _WARNING,
            "An uncased vocabulary is used as a cased one",
            f"{nature.capital_ratio:.2%} of its Latin pieces have a capital letter, {diagnosis.capital_ratio:.1%} of the "
            f"text's letters are capitals",
            "set do_lower_case to true in its tokenizer_config.json, or choose a cased vocabulary",
        )
    elif not nature.cased and nature.capital_ratio > 0.02:
        yield Finding(
            _WARNING,
            "A cased vocabulary is used as an uncased one",
            f"{nature.capital_ratio:.0%} of its Latin pieces have a capital letter and can never be used",
            "set do_lower_case to false in its tokenizer_config.json, or choose an uncased vocabulary",
        )


def _held_out_text(diagnosis: Diagnosis) -> Iterator[Finding]:
    held_out = diagnosis.held_out
    if held_out is None:
        return
    share = max(held_out.shared_documents_ratio, held_out.shared_lines_ratio)
    severity = _ERROR if share > 0.1 else _severity(share, 0.005)
    if severity:
        about = "" if held_out.exact else "about "
        example = _format_excerpt(diagnosis, "held-out documents") or _format_excerpt(diagnosis, "held-out lines")
        yield Finding(
            severity,
            "Held-out text also stands in the training text",
            f"{about}{held_out.shared_documents_ratio:.1%} of {held_out.documents:,} held-out documents and "
            f"{about}{held_out.shared_lines_ratio:.1%} of {held_out.long_lines:,} long lines{example}",
            "take these documents out of the training text, or leave --held-out away: `bertworks prepare` then holds "
            "documents out after it has removed copies",
        )


def _little_text(diagnosis: Diagnosis) -> Iterator[Finding]:
    fit = diagnosis.vocabulary
    pieces = fit.tokens if fit else round(_TOKENS_PER_WORD * diagnosis.words)
    if pieces < _ENOUGH_TOKENS:
        yield Finding(
            _NOTE,
            "There is little text to pretrain on",
            f"{'' if fit else 'about '}{pieces:,} pieces; BERT was trained on 3,300 million words",
            "add text, or continue the training of a released model with this text instead of starting anew",
        )


def _skipped_files(diagnosis: Diagnosis) -> Iterator[Finding]:
    skipped = {name: number for name, number in diagnosis.cleaning.items() if name.startswith("files skipped: ")}
    if skipped:
        told = ", ".join(f"{number:,} {name.removeprefix('files skipped: ')}" for name, number in skipped.items())
        yield Finding(
            _NOTE,
            "Files were skipped",
            told,
            "name the files or a pattern such as 'folder/*.txt' if that is not wanted",
        )


_RULES: tuple[Callable[[Diagnosis], Iterator[Finding]], ...] = (
    *(_blank_line_after_every_sentence, _giant_document, _shuffled_sentences, _duplicates),
    *(_lower_cased_text, _tokenized_text, _markup, _damage, _dropped_documents),
    *(_unfit_vocabulary, _held_out_text, _little_text, _skipped_files),
)
