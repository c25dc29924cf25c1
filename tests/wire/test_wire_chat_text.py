"""Where the answer begins in a text that holds reasoning."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.wire.chat_text import answer_begin, answer_ns, answer_text, sound


@pytest.mark.parametrize(
    ("text", "begin", "answer"),
    [
        ("", 0, ""),
        ("yes", 0, "yes"),
        ("  yes ", 0, "  yes "),
        ("<think>hm</think>yes", 17, "yes"),
        ("\n<think>hm</think>\n\nyes ", 18, "yes "),
        ("<think>hm", None, ""),
        ("<think>hm</think>", 17, ""),
        ("hm</think>yes", 10, "yes"),
        ("</think>yes", 8, "yes"),
        # Only what begins the text is reasoning: an answer may speak of the tags, and reasoning of another end.
        ("write <think> and </think> around it", 0, "write <think> and </think> around it"),
        ("<think>a</think>b</think>c", 16, "b</think>c"),
        ("<think>a <think> b</think>c", 26, "c"),
        ("<thin>hm</thin>", 0, "<thin>hm</thin>"),
    ],
)
def test_where_the_answer_begins(text: str, begin: int | None, answer: str) -> None:
    assert answer_begin(text) == begin
    assert answer_text(text) == answer


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "\n", "<", "think>", "yes"]), max_size=9), st.data())
def test_stamp_of_the_answer_whatever_the_pieces(words: list[str], data: st.DataObject) -> None:
    """The piece that holds the first character of the answer."""
    text = "".join(words)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    pieces = [text[a:b] for a, b in pairwise(sorted({0, len(text), *cuts}))]
    found = answer_ns(pieces, range(len(pieces)))
    begin = answer_begin(text)
    if begin is None or not text:
        assert found is None
    elif begin == 0:
        assert found == 0
    else:
        rest = text[begin:]
        at = begin + len(rest) - len(rest.lstrip())
        holding = [n for n in range(len(pieces)) if len("".join(pieces[: n + 1])) > at]
        assert found == (holding[0] if rest.strip() else None)


def test_text_that_can_be_sent_again() -> None:
    assert sound("好🙂") == "好🙂"
    assert sound("\ud83d\ude42") == "🙂"
    assert sound("a\ud83d") == "a\ufffd"
