"""Live history: the server's own answers take the place of the recorded ones. A disclosed mode, never the default.

A recorded tool result answers a recorded call id. Where the live answer made calls of its own, recorded results are
given to them in order; what is left over is sent as a user message, so that no server sees a result without its call.
"""

import json
from typing import Any

from agentperf.replay.bodies import EncodedSession, EncodedTurn
from agentperf.trace.model import Message
from agentperf.wire import chat
from agentperf.wire.exchange import Body


class LiveHistory:
    """The growing prompt of one session of one play, as encoded messages."""

    def __init__(self, session: EncodedSession, salt: bytes) -> None:
        self._session = session
        self._salt = salt
        self._messages: list[bytes] = []
        self._answer: Message | None = None

    def _push(self, message: Message) -> None:
        if len(self._messages) == self._session.salt_message and self._salt:
            before, after = chat.encode_salted(message)
            self._messages.append(before + self._salt + after)
        else:
            self._messages.append(chat.encode_message(message))

    def add_turn(self, turn: EncodedTurn) -> None:
        """Take up a turn's new messages, the recorded answer replaced by the live one where there is one."""
        new: list[Message] = json.loads(turn.new_messages)["m"]
        if turn.keep_messages < len(self._messages) and turn.index > 0 and turn.keep_messages == 0:
            self._messages = []  # the recording broke its prefix: begin anew with what was recorded
            self._answer = None
        answer, self._answer = self._answer, None
        if answer is None:
            for message in new:
                self._push(message)
            return
        self._push(answer)
        open_calls = [call["id"] for call in answer.get("tool_calls") or []]
        for message in new:
            if message.get("role") == "assistant":
                continue
            if message.get("role") != "tool":
                self._push(message)
            elif open_calls:
                self._push({**message, "tool_call_id": open_calls.pop(0)})
            else:
                self._push({"role": "user", "content": f"Tool result:\n{_text(message.get('content'))}"})
        for call_id in open_calls:
            self._push({"role": "tool", "tool_call_id": call_id, "content": "(no result was recorded)"})

    def answered(self, message: Message | None) -> None:
        """Keep the live answer for the next turn."""
        self._answer = message

    def body(self, head: bytes, tail: bytes) -> Body:
        """The body of the current turn, in parts."""
        return head, b",".join(self._messages), tail


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)
