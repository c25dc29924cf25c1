"""Pages: what is read of them, and that no page can hang or crash the reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.server import page as page_module
from agentperf.server.engines import wanted
from agentperf.server.page import MAX_BYTES, MAX_LINE, Page, PageError, read_page
from tests.server import pages

WANTED = wanted()
RUNNING = "vllm:num_requests_running"


def read(text: str) -> Page:
    return read_page(text.encode(), WANTED)


def test_only_wanted_names_are_read_as_they_stand() -> None:
    page = read(pages.vllm([0.2, 0.3], running=2, hits=5, queries=9, total=""))
    assert page.series(RUNNING) == {(("engine", "0"), ("model_name", "glm")): 2.0}
    assert "vllm:prefix_cache_hits" in page.samples  # the parser would have added _total to a counter's name
    assert "vllm:prefix_cache_hits_created" not in page.samples
    assert "python_gc_objects_collected_total" not in page.samples
    assert page.series("nothing") == {}


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        (f"{RUNNING} 3", (), 3.0),
        (f"  {RUNNING}\t3e0 1796082604000", (), 3.0),
        (f'{RUNNING}{{b="x",a="1"}} 3\r', (("a", "1"), ("b", "x")), 3.0),
        (f'{RUNNING}{{a="q\\"}} 7, \\n ü"}} 4', (("a", 'q"} 7, \n ü'),), 4.0),
    ],
)
def test_lines(line: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
    assert read(line).series(RUNNING) == {labels: value}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1" + "0" * 400])
def test_values_that_no_metric_of_ours_can_have_are_left_out(value: str) -> None:
    try:
        assert read(f"{RUNNING} {value}\n").samples == {}
    except PageError as error:
        assert value.startswith("10"), error


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'[{"cpuMemUsage": 1}]', "JSON"),
        (b"<!doctype html><html>", "HTML"),
        (b" " * (MAX_BYTES + 1), "larger than 8 MiB"),
        (f"{RUNNING} one\n".encode(), "cannot be parsed"),
        (f'{RUNNING}{{a="1" 3\n'.encode(), "cannot be parsed"),
        (f"{RUNNING}\n".encode(), "cannot be parsed"),
        (f"{RUNNING} 1\n{RUNNING} 2\n".encode(), "two values of one series"),
        (f'{RUNNING}{{a="{"x" * MAX_LINE}"}} 2\n'.encode(), "a line of more than 2,048 bytes"),
    ],
)
def test_what_is_no_page(data: bytes, why: str) -> None:
    with pytest.raises(PageError, match=why):
        read_page(data, WANTED)


def test_lines_of_wanted_names_are_bounded_and_others_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_LINES", 100)
    backslashes = chr(92) * 500
    others = "".join(f'other_metric_{i}{{a="{backslashes}"}} bad value\n' for i in range(2_000))
    assert read(others + f"{RUNNING} 1\n").series(RUNNING) == {(): 1.0}
    with pytest.raises(PageError, match="more than 100 lines"):
        read("".join(f'{RUNNING}{{i="{i}"}} 1\n' for i in range(101)))
    monkeypatch.setattr(page_module, "MAX_PARSED", 1_000)
    with pytest.raises(PageError, match="or 2 MiB"):
        read("".join(f'{RUNNING}{{i="{i}",a="{backslashes}"}} 1\n' for i in range(2)))


@given(st.binary(max_size=300))
def test_any_bytes_end_well(data: bytes) -> None:
    try:
        read_page(data, WANTED)
    except PageError as error:
        assert str(error)


@given(st.text(alphabet='{}",=\\ \n\t#ab01.eE+-_le', max_size=120), st.sampled_from(sorted(WANTED)))
def test_any_rest_of_a_line_ends_well(rest: str, name: str) -> None:
    try:
        page = read(f"{name}{rest}")
    except PageError as error:
        assert str(error)
    else:
        assert all(value >= 0 for series in page.samples.values() for value in series.values())
