"""From the bytes of a chat stream to its outcome. Runs after the stream has closed, once per event: kept cheap."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, cast

import msgspec

from agentperf.wire import failures, server_errors
from agentperf.wire.chat_calls import ToolCalls, visible_length
from agentperf.wire.chat_chunks import Choice, Chunk, Delta, decode_any, decode_chunk, lenient_choice
from agentperf.wire.chat_quick import STRETCH_READS, Stretch, plain_stretch
from agentperf.wire.chat_text import answer_begin, answer_ns, answer_text, sound
from agentperf.wire.chat_usage import usage_of_stream
from agentperf.wire.exchange import Exchange
from agentperf.wire.outcome import HIDDEN_REASONING, Outcome
from agentperf.wire.sse import SseDecoder, SseError, SseEvent

_BOM = b"\xef\xbb\xbf"
_FIRST_BYTES = 64
"""Bytes in which the first character of a body is looked for."""

NOT_A_STREAM = "answered with one JSON object instead of a stream"
"""Note on such a reply."""

_NOT_FINISHED = frozenset({"null", "none"})
"""Words that some servers send as finish_reason of every event."""

_FAILED_REASONS = frozenset(
    {"error", "abort", "aborted", "cancelled", "canceled", "insufficient_system_resource", "network_error"}
)
"""The server gave up on a reply that it had begun: vLLM and SGLang, DeepSeek, Zhipu, gateways."""


class _Fold:
    """State of one stream; `event` takes its events in order."""

    __slots__ = (
        "aside_chars",
        "bad",
        "broken_text",
        "calls",
        "cut",
        "done",
        "error",
        "events",
        "finish_chars",
        "finish_reason",
        "first_call_ns",
        "first_chars",
        "late",
        "main",
        "mask",
        "reasoned",
        "text",
        "text_ns",
        "usages",
        "visible_chars",
        "visible_ns",
    )

    def __init__(self, mask: Callable[[str], str] = str) -> None:
        self.mask = mask
        self.events = 0
        self.visible_ns: list[int] = []
        self.visible_chars = 0
        self.first_chars = 0
        self.first_call_ns: int | None = None
        self.text: list[str] = []
        self.text_ns: list[int] = []
        self.calls = ToolCalls()
        self.finish_reason: str | None = None
        # Characters of the answer up to finish_reason, and those of choices that are not the answer.
        self.finish_chars = 0
        self.aside_chars = 0
        # Each usage object with the number of visible events before it.
        self.usages: list[tuple[Any, int]] = []
        # The index of the choice that is the answer: that of the first one.
        self.main: Any = None
        self.reasoned = False
        self.done = False
        self.late = False
        self.broken_text = False
        self.cut = False
        self.error: server_errors.ServerError | None = None
        self.bad: str | None = None

    def event(self, event: SseEvent, ns: int) -> None:
        """Take one event that was complete at `ns`."""
        data = event.data
        self.events += 1
        if self.done:
            self._after_done(data)
            return
        if event.event is not None and event.event.lower() == "error":
            self._named_error(event)
            return
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = decode_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._odd(event, ns)
            return
        if chunk.choices is None or chunk.error:
            self._odd(event, ns)
            return
        if chunk.choices:
            self._choices(chunk.choices, ns)
        if chunk.usage:
            self.usages.append((chunk.usage, len(self.visible_ns)))

    def stretch(self, found: Stretch, stamps: Sequence[int]) -> None:
        """Take the events of a plain stretch, `counts[i]` of them complete at `stamps[i]`."""
        each = list(stamps)
        if found.counts is not None:
            each = [ns for count, ns in zip(found.counts, stamps, strict=True) for _ in range(count)]
        self.events += len(each)
        texts_at, tail_at = len(found.head), len(each) - len(found.tail)
        self._chunks(found.head, each[:texts_at])
        self._texts(found.texts, each[texts_at:tail_at])
        self._chunks(found.tail, each[tail_at:])

    def _chunks(self, chunks: list[Chunk], stamps: Sequence[int]) -> None:
        for chunk, ns in zip(chunks, stamps, strict=True):
            choices = chunk.choices
            if choices and len(choices) == 1 and choices[0].index == self.main:
                self._choice(choices[0], ns)
            elif choices:
                self._choices(choices, ns)
            if chunk.usage:
                self.usages.append((chunk.usage, len(self.visible_ns)))

    def _texts(self, texts: list[str], stamps: list[int]) -> None:
        """Content of the choice numbered 0 and nothing else, one text an event."""
        if not texts:
            return
        if self.main is None:
            self.main = 0
        if self.main != 0 or "" in texts:
            for text, ns in zip(texts, stamps, strict=True):
                self._choices([Choice(delta=Delta(content=text), index=0)], ns)
            return
        self.text += texts
        self.text_ns += stamps
        self.visible_ns += stamps
        self.visible_chars += sum(map(len, texts))
        for text, ns in zip(texts, stamps, strict=True):
            if ns != self.visible_ns[0]:
                break
            self.first_chars += len(text)

    def _choices(self, choices: list[Choice], ns: int) -> None:
        """The choices of one event. Only one is asked for; where more come, their tokens were made and counted too."""
        aside = 0
        for choice in choices:
            index = choice.index if choice.index is not None else 0
            if self.main is None:
                self.main = index
            if index == self.main:
                self._choice(choice, ns)
            else:
                aside += visible_length(choice.delta or choice.message)
        if aside:
            self.aside_chars += aside
            self._visible(aside, ns)

    def _choice(self, choice: Choice, ns: int) -> None:
        if choice.error:
            self._failed(choice.error)
        delta = choice.delta or choice.message
        if delta is not None:
            chars = 0
            text = delta.content or delta.refusal
            if text:
                chars = len(text)
                self.text.append(text)
                self.text_ns.append(ns)
            reasoning = delta.reasoning or delta.reasoning_content
            if reasoning:
                self.reasoned = True
                chars += len(reasoning)
            if delta.tool_calls or delta.function_call:
                added = self.calls.add(delta)
                chars += added
                if added and self.first_call_ns is None:
                    self.first_call_ns = ns
            if chars:  # as `_visible`, without the call
                stamps = self.visible_ns
                stamps.append(ns)
                self.visible_chars += chars
                if ns == stamps[0]:
                    self.first_chars += chars
        if choice.finish_reason:
            self._finish(choice.finish_reason)

    def _visible(self, chars: int, ns: int) -> None:
        """One event with visible output."""
        stamps = self.visible_ns
        stamps.append(ns)
        self.visible_chars += chars
        if ns == stamps[0]:
            self.first_chars += chars

    def _finish(self, reason: str) -> None:
        word = reason.strip().lower()
        if word and word not in _NOT_FINISHED:
            self.finish_reason = server_errors.one_line(reason, 60)
            self.finish_chars = self.visible_chars - self.aside_chars
        if word in _FAILED_REASONS:
            self._failed(f"finish_reason is {word}")

    def _odd(self, event: SseEvent, ns: int) -> None:
        """An event that the typed decoder does not take: an error, an unusual shape, or no JSON at all."""
        data = event.data.strip()
        if not data:
            return
        if data == b"[DONE]":
            self.done = True
            return
        try:
            value, sound_text = decode_any(data)
        except ValueError:
            if not event.complete:
                self.cut = True
            elif event.event is None or event.event.lower() == "message":
                self._bad(data)
            # An event of another name (ping, heartbeat) is none of a chat's, and its data may be anything.
            return
        self.broken_text = self.broken_text or not sound_text
        if not isinstance(value, dict):
            self._bad(data)
            return
        choices = value.get("choices")
        if value.get("error") or (not isinstance(choices, list) and _says_error(value)):
            self._failed(value)
        if isinstance(choices, list) and choices:
            self._choices([lenient_choice(choice) for choice in choices], ns)
        if value.get("usage"):
            self.usages.append((value["usage"], len(self.visible_ns)))

    def _after_done(self, data: bytes) -> None:
        """Clients stop reading at [DONE]; only a count that a server sends too late is of use."""
        if data.strip() in (b"", b"[DONE]"):
            return
        self.late = True
        try:
            value, _ = decode_any(data)
        except ValueError:
            return
        if isinstance(value, dict) and value.get("usage"):
            self.usages.append((value["usage"], len(self.visible_ns)))

    def _named_error(self, event: SseEvent) -> None:
        text = event.data.strip() or (event.comment or b"").strip()
        value: Any
        try:
            value, _ = decode_any(text)
        except ValueError:
            value = text.decode("utf-8", "replace")
        self._failed(value or "an event named error, without text")

    def _failed(self, value: Any) -> None:
        """The first error counts. Secrets are taken out before it is cut to its length."""
        if self.error is None:
            self.error = server_errors.from_value(value, self.mask)

    def _bad(self, data: bytes) -> None:
        if self.bad is None:
            self.bad = server_errors.one_line(self.mask(data[:4096].decode("utf-8", "replace")), 120)

    def is_over(self, *, broke: bool) -> bool:
        """Whether the answer is whole. Where the connection broke, text behind finish_reason shows that it is not."""
        more = self.visible_chars - self.aside_chars > self.finish_chars
        return self.done or (self.finish_reason is not None and not (broke and more))

    def first_answer_ns(self) -> int | None:
        """First content or tool-call text; reasoning written inline as <think>...</think> is left out."""
        text_ns = answer_ns(self.text, self.text_ns)
        candidates = [ns for ns in (text_ns, self.first_call_ns) if ns is not None]
        return min(candidates) if candidates else None

    def message(self) -> dict[str, Any] | None:
        """The answer as an assistant message, without reasoning; None when there was nothing to say."""
        text = answer_text("".join(self.text))
        if not text and not self.calls:
            return None
        message: dict[str, Any] = {"role": "assistant", "content": sound(text) if text else None}
        if self.calls:
            message["tool_calls"] = self.calls.message()
        return message


def _says_error(value: dict[str, Any]) -> bool:
    """A chunk without choices that reports a failure, in the words of several servers."""
    if value.get("type") == "error" or value.get("object") == "error":
        return True
    said = value.get("detail") or value.get("error_message") or value.get("error_msg")
    return bool(said) or ("message" in value and "code" in value)


def fold(exchange: Exchange) -> Outcome:
    """The outcome of a chat request. Never raises for what a server sent; failures have a class and a line."""
    steps = fold_steps(exchange)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Outcome", end.value)


def fold_steps(exchange: Exchange) -> Generator[None, None, Outcome]:
    """The same in steps of a fraction of a millisecond each, so that other streams are read between them."""
    x = exchange
    first_byte = x.stamps[0] if x.stamps else None
    error = server_errors.one_line(x.error) if x.error else None
    out = Outcome("failed", x.error_class, error, status=x.status, first_byte_ns=first_byte)
    if x.error_class == failures.CUT:
        out.outcome = "truncated"
    if x.status is None:
        return out
    if not 200 <= x.status < 300:
        return _http_error(x, out)
    state = _Fold(x.mask)
    plain: str | None = None
    try:
        if (body := _json_body(x)) is not None:
            state.event(SseEvent(body, complete=x.error_class is None), x.stamps[-1])
            plain = NOT_A_STREAM
        else:
            yield from _read_events(x, state)
    except SseError as error:
        state.bad = str(error)
    _fill(out, state)
    if plain is not None:
        out.notes.append(plain)
    if out.outcome != "truncated":
        _judge(x, out, state, whole_json=plain is not None)
    return out


def _http_error(x: Exchange, out: Outcome) -> Outcome:
    assert x.status is not None
    error = server_errors.from_body(b"".join(x.chunks))
    headers = dict(x.headers)
    out.error_class = server_errors.classify(x.status, error)
    out.error = f"HTTP {x.status}: {error.message}" if error.message else f"HTTP {x.status} without a message"
    if 300 <= x.status < 400 and headers.get("location"):
        out.error = f"HTTP {x.status}: redirects to {server_errors.one_line(headers['location'], 120)}"
    if "retry-after" in headers:
        out.notes.append(f"Retry-After: {server_errors.one_line(headers['retry-after'], 40)}")
    return out


def _json_body(x: Exchange) -> bytes | None:
    """The body of an answer that came as one JSON object instead of a stream, whatever its type says."""
    start = b""
    for chunk in x.chunks:
        start += chunk
        if len(start) >= _FIRST_BYTES:
            break
    if not start.removeprefix(_BOM).lstrip().startswith(b"{"):
        return None
    return b"".join(x.chunks).removeprefix(_BOM).strip()


def _read_events(x: Exchange, state: _Fold) -> Iterator[None]:
    """Fold all events, a stretch of reads at a time."""
    decoder = SseDecoder()
    chunks, stamps = x.chunks, x.stamps
    for start in range(0, len(chunks), STRETCH_READS):
        if start:
            yield
        reads = chunks[start : start + STRETCH_READS]
        plain = plain_stretch(reads) if decoder.between_events and not state.done else None
        if plain is not None:
            state.stretch(plain, stamps[start : start + STRETCH_READS])
            state.done = state.done or plain.done
            decoder.skip()
        else:
            for offset, read in enumerate(reads):
                for event in decoder.feed(read):
                    state.event(event, stamps[start + offset])
    for event in decoder.flush():
        state.event(event, stamps[-1])


def _fill(out: Outcome, state: _Fold) -> None:
    """Measures, also of requests that failed: their tokens were made and wasted."""
    stamps = state.visible_ns
    if stamps:
        out.first_visible_ns, out.last_visible_ns = stamps[0], stamps[-1]
        out.visible_ns = stamps
        out.visible_chars = state.visible_chars
        out.n1_share = state.first_chars / state.visible_chars
        out.first_answer_ns = state.first_answer_ns()
        out.message = state.message()
    out.finish_reason = state.finish_reason
    usage, stale = usage_of_stream(state.usages, len(stamps))
    if usage is not None:
        out.prompt_tokens, out.cached_tokens, out.output_tokens, out.reasoning_tokens = usage
    if stale:
        out.notes.append("the last count of output tokens came before the last output: not used")
    if out.reasoning_tokens and stamps and not state.reasoned and answer_begin("".join(state.text)) == 0:
        out.hidden_tokens = out.reasoning_tokens
        out.notes.append(HIDDEN_REASONING)


def _judge(x: Exchange, out: Outcome, state: _Fold, *, whole_json: bool) -> None:
    """Decide between ok and the failure classes, the most telling first."""
    ended = state.is_over(broke=x.error_class is not None)
    if state.error is not None:
        overflow = server_errors.is_overflow(state.error)
        _fail(out, failures.CONTEXT_OVERFLOW if overflow else failures.SERVER_ERROR_IN_STREAM, state.error.message)
    elif state.bad is not None:
        _fail(out, failures.BAD_EVENT, f"cannot be decoded: {state.bad}")
    elif x.error_class is not None and not (ended and state.visible_ns):
        _broken(x, out, state)
    elif not state.visible_ns and (ended or whole_json or state.events == 0):
        _empty(x, out, state)
    elif not ended and not whole_json:
        what = "in the middle of an event" if state.cut else "without finish_reason and [DONE]"
        _fail(out, failures.TRUNCATED_STREAM, f"the stream ended {what}, after {len(state.visible_ns)} visible events")
    else:
        out.outcome, out.error_class, out.error = "ok", None, None
        _notes(x, out, state, whole_json=whole_json)


def _notes(x: Exchange, out: Outcome, state: _Fold, *, whole_json: bool) -> None:
    if x.error_class is not None:
        out.notes.append(f"{x.error_class} after the end of the answer")
    if not state.done and not whole_json:
        out.notes.append("no [DONE]")
    if state.finish_reason is None:
        out.notes.append("no finish_reason")
    if state.late:
        out.notes.append("data after [DONE]: only a token count is taken from it")
    if state.broken_text:
        out.notes.append("text that is not UTF-8")


def _broken(x: Exchange, out: Outcome, state: _Fold) -> None:
    """The exchange broke before the answer was over."""
    if x.error_class == failures.CONNECTION_RESET and x.chunks:
        text = f"{x.error or 'the connection broke'}, after {len(state.visible_ns)} visible events"
        _fail(out, failures.TRUNCATED_STREAM, text)


def _empty(x: Exchange, out: Outcome, state: _Fold) -> None:
    content_type = next((value for name, value in x.headers if name == "content-type"), "")
    body = b"".join(x.chunks).strip()
    streamed = body.startswith((b":", b"data", b"event", b"id", b"retry"))
    if body and not streamed and state.finish_reason is None:
        start = server_errors.one_line(body[:400].decode("utf-8", "replace"), 80)
        _fail(out, failures.PROTOCOL_ERROR, f"HTTP {x.status} with {content_type or 'no content type'}: {start}")
    elif state.finish_reason is not None:
        _fail(out, failures.EMPTY_STREAM, f"the stream ended with finish_reason {state.finish_reason} and no output")
    else:
        _fail(out, failures.EMPTY_STREAM, "the stream ended without any output")


def _fail(out: Outcome, error_class: str, text: str) -> None:
    out.outcome, out.error_class, out.error = "failed", error_class, server_errors.one_line(text)
