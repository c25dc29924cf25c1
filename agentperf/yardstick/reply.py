"""What the reference server writes, as bytes made ahead: one HTTP chunk a token, in the shape that vLLM streams."""

from dataclasses import dataclass

import msgspec

MODEL = "reference"

_WORDS = (
    " the", " file", " reads", " each", " line", " and", " then", " calls", " parse", "()", " with", " its", " length",
    ".", "\n", "    return", " value", " if", " it", " is", " not", " None", " else", " raise", " Error", ":", " so",
    " tests", " must", " cover", " that", " too",
)  # fmt: skip
_START = b'data: {"id":"chatcmpl-reference","object":"chat.completion.chunk","created":1,"model":"reference","choices":'
_END = b"}\n\n"


@dataclass(frozen=True, slots=True)
class Pace:
    """How the server answers. `tps` 0 is the firehose: after the first token as fast as the socket takes."""

    tps: float
    """Tokens per second of each stream, one token an event."""
    ttft_ms: float
    """From the last byte of the request to the first token."""
    tokens: int
    """Length of a reply whose request names none."""

    @property
    def interval_ns(self) -> int:
        """Between the deadlines of two tokens; 0 for the firehose."""
        return round(1e9 / self.tps) if self.tps else 0

    @property
    def ttft_ns(self) -> int:
        """From the last byte of the request to the deadline of the first token."""
        return round(self.ttft_ms * 1e6)

    @property
    def stream_s(self) -> float:
        """How long a reply of `tokens` takes when neither side is late; without the tokens for the firehose."""
        return (self.ttft_ns + (self.tokens - 1) * self.interval_ns) / 1e9


def http_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _delta(delta: dict[str, str], finish: bytes = b"null") -> bytes:
    choice = b'[{"index":0,"delta":' + msgspec.json.encode(delta) + b',"logprobs":null,"finish_reason":' + finish
    return http_chunk(_START + choice + b"}]" + _END)


TOKENS = tuple(_delta({"content": word}) for word in _WORDS)
"""Events with one token each; token number i of a reply is `TOKENS[i & MASK]`."""
MASK = len(TOKENS) - 1

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n"
)
"""Head of a streamed answer, without the empty line behind it."""
ROLE = _delta({"role": "assistant", "content": ""})
_STOP = _delta({}, b'"length"')
_DONE = http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def ending(prompt_tokens: int, output_tokens: int, *, usage: bool) -> bytes:
    """All that follows the last token: finish reason, usage where it was asked for, [DONE], the end of the body."""
    counts = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }
    told = http_chunk(_START + b'[],"usage":' + msgspec.json.encode(counts) + _END) if usage else b""
    return _STOP + told + _DONE


def plain_answer(status: str, document: object, *, close: bool) -> bytes:
    """A whole answer with a JSON body; `status` is `404 Not Found` and the like."""
    body = msgspec.json.encode(document)
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return (head + ("connection: close\r\n" if close else "") + "\r\n").encode() + body
