"""Where special tokens stand around one or two texts: the [CLS] token of a vocabulary in, its template out."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SpecialTokenTemplate:
    """The layout of a sequence of one or two texts.

    num_before       [CLS] tokens before the texts
    num_between      separators between two texts
    num_after        [CLS] tokens after the texts
    token_type_ids   of the first text, of the second text, and of a [CLS] token after the texts
    num_final        separators after the last text
    """

    num_before: int
    num_between: int
    num_after: int
    token_type_ids: tuple[int, int, int]
    num_final: int = field(default=1, kw_only=True)

    def num_separators(self, index: int, num_texts: int) -> int:
        """Return the number of separators after text `index`."""
        return self.num_between if index + 1 < num_texts else self.num_final

    def num_special_tokens(self, num_texts: int) -> int:
        """Return the number of special tokens in a sequence of one or two texts."""
        return self.num_before + (num_texts - 1) * self.num_between + self.num_final + self.num_after


BERT = SpecialTokenTemplate(1, 1, 0, (0, 1, 0))  # [CLS] A [SEP] B [SEP]
ROBERTA = SpecialTokenTemplate(1, 2, 0, (0, 0, 0))  # <s> A </s> </s> B </s>, all of token type 0
XLNET = SpecialTokenTemplate(0, 1, 1, (0, 1, 2))  # A <sep> B <sep> <cls>
PLAIN = SpecialTokenTemplate(0, 0, 0, (0, 0, 0), num_final=0)  # A B, as transformers' GPT
_BY_CLS_TOKEN = {"<s>": ROBERTA, "<cls>": XLNET}


def template_for(cls_token: str) -> SpecialTokenTemplate:
    """Return the template of the vocabularies that have this [CLS] token."""
    return _BY_CLS_TOKEN.get(cls_token, BERT)
