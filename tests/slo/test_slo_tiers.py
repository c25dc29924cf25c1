"""Named SLOs: the figures as published, names resolved, broken files named."""

import json

import pytest
import typer
from typer.testing import CliRunner

from agentperf.errors import SloError
from agentperf.slo.expression import parse
from agentperf.slo.tiers import load_tiers, resolve

PUBLISHED = {
    "aa/deepseek-v4-pro/1": (20, 10),
    "aa/deepseek-v4-pro/2": (60, 5),
    "aa/deepseek-v4-pro/3": (180, 3),
    "aa/gpt-oss-120b/1": (100, 5),
    "aa/gpt-oss-120b/2": (250, 3),
    "aa/gpt-oss-120b/3": (500, 2),
    "aa/gpt-oss-120b/4": (2000, 1),
}


def test_the_published_figures():
    tiers = load_tiers()
    assert list(tiers) == list(PUBLISHED)
    for name, (floor, ceiling) in PUBLISHED.items():
        tier = tiers[name]
        assert tier.slo == parse(f"p25 speed >= {floor}, p95 ttft <= {ceiling}s, errors <= 1 %")
        assert tier.slo.name == name
        assert tier.slo.notes == ("errors <= 1 % added by default",), "what was not published is said"
        assert tier.url.startswith("https://artificialanalysis.ai/")
        assert tier.date.startswith("2026-")
    assert {n for n, t in tiers.items() if t.verification == "primary"} == {
        "aa/deepseek-v4-pro/1",
        "aa/deepseek-v4-pro/2",
    }


def test_a_name_or_an_expression():
    assert resolve("aa/deepseek-v4-pro/2") == parse("p25 speed >= 60, p95 ttft <= 5s")
    assert resolve(" AA/DeepSeek-V4-Pro/2 ").name == "aa/deepseek-v4-pro/2"
    assert resolve("60tps") == resolve("aa/deepseek-v4-pro/2")
    assert resolve("60 tok/s") == resolve("60tok/s") == resolve("60tps")
    assert "deepseek-v4-pro" not in resolve("60tps").name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("aa/deepseek-v4-pro", "did you mean aa/deepseek-v4-pro/1 or aa/deepseek-v4-pro/2 or aa/deepseek-v4-pro/3?"),
        ("aa/deepseek-v4-pro/", "aa/deepseek-v4-pro/1"),
        ("aa/deepseek-v4-prop/2", "did you mean aa/deepseek-v4-pro/2"),
        ("aa/gpt-oss-120b/9", "aa/gpt-oss-120b/1"),
        ("nobody/has/this", "`agentperf tiers`"),
        ("80tsp", "bad SLO"),
    ],
)
def test_what_is_not_there_suggests_what_is(text, words):
    with pytest.raises(SloError) as caught:
        resolve(text)
    assert words in str(caught.value)


GOOD = """
id = "me/mine"
publisher = "me"
benchmark = "mine"
model = "m"
effort = "low"
[source]
title = "t"
url = "u"
date = 2026-01-02
[[tier]]
number = 1
slo = "80tps"
verification = "own"
note = "n"
"""


def test_a_file_of_ones_own(tmp_path):
    (tmp_path / "mine.toml").write_text(GOOD)
    tier = load_tiers(tmp_path)["me/mine/1"]
    assert (tier.date, tier.verification, tier.slo) == ("2026-01-02", "own", parse("80tps"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('slo = "80tps"', 'slo = "80"', "bad SLO"),
        ('slo = "80tps"', "slo = 80", ""),
        ('effort = "low"', "", "'effort' is missing"),
        ("[[tier]]", "[[tear]]", "'tier' is missing"),
        ("number = 1", "number = 0", "whole number"),
        ('"own"', '"sure"', "verification"),
        ('id = "me/mine"', 'id = "Me Mine"', "lower case"),
        ("[source]", "[source", "cannot be read"),
        ("[source]", "[sauce]", "'source' is missing"),
    ],
)
def test_a_broken_file_is_named(tmp_path, old, new, words):
    assert old in GOOD
    (tmp_path / "mine.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(SloError) as caught:
        load_tiers(tmp_path)
    assert "mine.toml" in str(caught.value)
    assert words in str(caught.value)


def test_a_tier_defined_twice(tmp_path):
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text(GOOD)
    with pytest.raises(SloError, match=r"b\.toml: tier me/mine/1 is defined twice"):
        load_tiers(tmp_path)


def command():
    from agentperf.cli.tiers import tiers

    app = typer.Typer()
    app.command("tiers")(tiers)
    return app


def test_the_command_lists_and_filters(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(command(), ["DeepSeek"])
    assert shown.exit_code == 0
    assert "p25 speed >= 60 tok/s, p95 ttft <= 5 s, errors <= 1 %" in shown.output
    assert "gpt-oss" not in shown.output
    assert "errors <= 1 % added by default" in shown.output
    whole = CliRunner().invoke(command(), ["--json"])
    assert [t["id"] for t in json.loads(whole.stdout)] == list(PUBLISHED)
    assert json.loads(whole.stdout)[1]["terms"][0]["limit"] == 60.0
    assert isinstance(CliRunner().invoke(command(), ["nobody"]).exception, SloError)
