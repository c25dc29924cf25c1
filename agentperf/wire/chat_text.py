"""The text of a reply: where reasoning that was written into the content ends, and text that can be sent again."""

from collections.abc import Sequence

_OPEN, _CLOSE = "<think>", "</think>"


def answer_begin(text: str) -> int | None:
    """Index of the first character behind inline reasoning; 0 where there is none, None where it never ended.

    Reasoning begins the text with `<think>`; or the prompt's template has written that already, so that only its end is
    in the text.
    """
    end = text.find(_CLOSE)
    if text.lstrip().startswith(_OPEN):
        return end + len(_CLOSE) if end >= 0 else None
    if end >= 0 and _OPEN not in text[:end]:
        return end + len(_CLOSE)
    return 0


def answer_ns(pieces: Sequence[str], stamps: Sequence[int]) -> int | None:
    """Stamp of the first piece with text of the answer; white space between reasoning and answer is neither."""
    begin = answer_begin("".join(pieces))
    if begin is None or not pieces:
        return None
    if begin == 0:
        return stamps[0]
    at = 0
    for piece, ns in zip(pieces, stamps, strict=True):
        at += len(piece)
        if at > begin and piece[max(0, len(piece) - (at - begin)) :].strip():
            return ns
    return None


def answer_text(text: str) -> str:
    """The text without inline reasoning."""
    begin = answer_begin(text)
    if begin is None:
        return ""
    return text[begin:].lstrip() if begin else text


def sound(text: str) -> str:
    """Join surrogate halves that came in different events, so that the text can be sent again."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
