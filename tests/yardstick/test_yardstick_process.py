"""The reference server as a process: over real sockets, in real time, against its own log."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from agentperf.errors import ClientError
from agentperf.yardstick.process import ServerProcess
from agentperf.yardstick.reply import Pace

PACE = Pace(tps=50, ttft_ms=100, tokens=26)


def stream(client: httpx.Client, url: str, request_id: str, **fields: object) -> tuple[list[str], int, int]:
    """(data of each event, when the first and the last one with text came)."""
    body = {"model": "m", "messages": [], "stream": True, **fields}
    events, stamps = [], []
    with client.stream("POST", f"{url}/chat/completions", json=body, headers={"x-request-id": request_id}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(line[6:])
                if '"content":"' in line and '"content":""' not in line:
                    stamps.append(time.monotonic_ns())
    return events, stamps[0], stamps[-1]


def test_streams_by_httpx_and_the_log_agree() -> None:
    with ServerProcess(PACE, 60) as server, httpx.Client(trust_env=False) as client:
        answers = {}
        for index in range(2):
            usage = {"include_usage": bool(index)}
            answers[f"r{index}"] = stream(client, server.base_url, f"r{index}", stream_options=usage)
        rows = {row.id: row for row in server.take_rows()}
        assert server.take_rows() == []
        assert client.get(f"{server.base_url}/models").json()["data"][0]["id"] == "reference"
        assert client.post(f"{server.base_url}/chat/completions", json={"stream": False}).status_code == 400
        assert server.work().tokens == 2 * 26
        assert server.work().cpu_s > 0
    assert set(rows) == set(answers)
    for name, (events, first_ns, last_ns) in answers.items():
        row = rows[name]
        assert events[-1] == "[DONE]"
        assert sum('"usage":{"prompt_tokens":' in e for e in events) == (name == "r1")
        assert (row.outcome, row.tokens, row.blocked) == ("ok", 26, 0)
        assert row.received_ns <= row.first_ns <= first_ns, "the stamp is taken before the send"
        assert row.last_ns <= last_ns
        assert row.first_due_ns == row.received_ns + PACE.ttft_ns
        assert row.last_due_ns == row.first_due_ns + 25 * PACE.interval_ns, "deadlines do not drift"
        assert row.first_ns >= row.first_due_ns
        assert row.last_ns >= row.last_due_ns


def test_many_streams_keep_their_pace() -> None:
    """Medians and ratios: another process that takes the core for a while breaks nothing."""
    with ServerProcess(PACE, 60) as server:

        def one(number: int) -> None:
            with httpx.Client(trust_env=False) as client:
                stream(client, server.base_url, f"s{number}")

        threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = server.take_rows()
    assert len(rows) == 8
    speeds = [row.speed_tps for row in rows]
    assert float(np.median([s for s in speeds if s is not None])) == pytest.approx(50, rel=0.02)
    assert float(np.median([row.late_ns for row in rows])) < 0.25 * PACE.interval_ns


def _gone_within(pid: int, limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_it_dies_with_its_parent() -> None:
    code = (
        "import time\n"
        "from agentperf.yardstick.process import ServerProcess\n"
        "from agentperf.yardstick.reply import Pace\n"
        "with ServerProcess(Pace(50, 100, 10), 60) as server:\n"
        "    import sys\n"
        "    sys.stdout.write(str(server.pid) + chr(10)); sys.stdout.flush()\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not _gone_within(pid, 0.2)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert _gone_within(pid, 10)


def test_its_life_is_bounded() -> None:
    with ServerProcess(PACE, 0.3) as server:
        time.sleep(0.8)
        with pytest.raises(ClientError, match="the reference server ended by itself"):
            server.take_rows()


def test_it_ends_with_the_context() -> None:
    with ServerProcess(PACE, 60) as server:
        pid = server.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
