"""Scripts by character, languages by script or function words."""

from __future__ import annotations

from collections import Counter

import pytest

from bertworks.text.languages import language_of, languages_in, scripts_of


def guess(text: str) -> str | None:
    characters = Counter(text)
    return language_of(text, characters, scripts_of(characters))


def test_scripts_count_letters_only() -> None:
    assert scripts_of(Counter("Ab, 12 中文。 ж")) == Counter({"Latin": 2, "Han": 2, "Cyrillic": 1})


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "The miller was with his daughter and they were not far from the village."),
        ("de", "Der Müller war mit der Tochter nicht weit von dem Dorf, und die Sonne ist warm."),
        ("fr", "Le meunier est dans la ville avec une fille qui ne parle pas, et les gens sont au marché."),
        ("es", "El molinero fue a la ciudad con una hija que no habla, pero los vecinos se van por las calles."),
        ("it", "Il mugnaio non è nella città, ma gli uomini che sono alla porta della casa lo sanno."),
        ("pt", "O moleiro não foi para a cidade com uma filha, mas os homens da aldeia foram mais longe."),
        ("nl", "De molenaar is niet met het meisje naar een stad, maar hij werd op de weg gezien."),
        ("zh", "磨坊主和女儿住在村子里。"),
        ("ja", "粉屋は娘と村に住んでいました。"),
        ("ko", "방앗간 주인은 딸과 마을에 살았다."),
        ("ru", "Мельник жил с дочерью в деревне."),
        ("uk", "Мірошник жив із донькою в селі."),
        ("ar", "عاش الطحان مع ابنته في القرية."),
        ("fa", "آسیابان با دخترش در روستای کوچک زندگی می‌کرد. چرا؟ گفت: پدر."),
        ("hi", "चक्कीवाला अपनी बेटी के साथ गाँव में रहता था।"),
        ("el", "Ο μυλωνάς ζούσε με την κόρη του."),
        ("other (Latin)", "Zxcv qwer tyui asdf."),
        (None, "12 + 30 = 42"),
    ],
)
def test_the_language_is_guessed(language: str | None, text: str) -> None:
    assert guess(text) == language


def test_chinese_text_with_a_japanese_name_is_chinese() -> None:
    assert (
        guess(
            "作家村上春树的小说《ノルウェイ》在中国有很多读者，许多年轻人都喜欢他写的故事，也喜欢书里的音乐和城市生活。"
        )
        == "zh"
    )


def test_languages_are_guessed_from_many_short_texts_by_their_letters() -> None:
    english = ["The cat was in the house", "and they were not with her", "OK"] * 20
    chinese = ["猫在家里睡觉。"] * 40
    assert languages_in([*english, *chinese]) == ["en", "zh"]  # about 800 and 240 letters
    assert languages_in([*chinese, *english, *["Мельник жил"] * 3]) == ["en", "zh"]  # 30 letters are too few
    assert languages_in(["Мельник жил с дочерью."]) == ["ru"]


def test_texts_without_letters_have_no_language() -> None:
    assert languages_in(["12", "", "?!"]) == []
