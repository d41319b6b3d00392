"""Where special pieces stand around texts: the name of a vocabulary's first special piece in, its Frame out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpecialTokenTemplate:
    """How a row of one text or two is laid out. A separator ends each text.

    num_before    summary pieces before the texts
    num_between   separators between two texts
    num_after     summary pieces behind the texts
    segments      of the first text, of the second, and of a summary piece behind them
    """

    num_before: int
    num_between: int
    num_after: int
    token_type_ids: tuple[int, int, int]

    def num_separators(self, number: int, num_texts: int) -> int:
        """Return how many separators stand behind text `number`."""
        return self.num_between if number + 1 < num_texts else 1

    def num_special_tokens(self, num_texts: int) -> int:
        """Return how many special pieces a row has."""
        separators = sum(self.num_separators(number, num_texts) for number in range(num_texts))
        return self.num_before + separators + self.num_after


BERT = SpecialTokenTemplate(1, 1, 0, (0, 1, 0))  # [CLS] A [SEP] B [SEP]
ROBERTA = SpecialTokenTemplate(1, 2, 0, (0, 0, 0))  # <s> A </s> </s> B </s>: it knows no segments
XLNET = SpecialTokenTemplate(0, 1, 1, (0, 1, 2))  # A <sep> B <sep> <cls>
_BY_CLS_TOKEN = {"<s>": ROBERTA, "<cls>": XLNET}


def template_for(cls_token: str) -> SpecialTokenTemplate:
    """Return the frame of a vocabulary by the name of its summary piece."""
    return _BY_CLS_TOKEN.get(cls_token, BERT)
