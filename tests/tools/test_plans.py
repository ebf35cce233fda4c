"""explain, tune: the plan of every operator on the command line, in short, in full and as JSON."""

import json
import re

import pytest

import implicit_conv as ic
from implicit_conv.cpu.machine.peak import clock
from implicit_conv.cpu.plan import tuning
from implicit_conv.tools import plans
from implicit_conv.tools.cli import main

CALLS = {  # operator -> what is given in a shell, and in Python
    "conv1d": ("1,8,99 4,8,5 --stride 2", dict(stride=2)),
    "conv2d": ("1,8,19,19 4,8,3,3 --padding same --layout NCHW", dict(padding="same")),
    "conv3d": ("1,4,9,9,9 4,4,3,3,3 --padding 1,0,1", dict(padding=(1, 0, 1))),
    "conv_transpose1d": ("1,8,20 8,4,5 --stride 3 --output-padding 1", None),
    "conv_transpose2d": ("1,8,9,9 8,4,3,3 --stride 2", dict(stride=2)),
    "conv_transpose3d": ("1,4,5,5,5 4,4,3,3,3 --stride 2", dict(stride=2)),
    "conv1d_input_grad": ("1,4,95 4,8,5 --input-shape 1,8,99", dict(input_shape=(1, 8, 99))),
    "conv2d_input_grad": ("1,4,9,9 4,8,3,3 --input-shape 1,8,11,11", None),
    "conv3d_input_grad": ("1,4,5,5,5 4,4,3,3,3 --input-shape 1,4,7,7,7", None),
    "conv1d_weight_grad": ("1,8,99 1,4,95 --weight-shape 4,8,5", dict(weight_shape=(4, 8, 5))),
    "conv2d_weight_grad": ("1,8,11,11 1,4,9,9 --weight-shape 4,8,3,3", None),
    "conv3d_weight_grad": ("1,4,7,7,7 1,4,5,5,5 --weight-shape 4,4,3,3,3", None),
}
NUMBER = r"\d+\.\d{3} ms"


def shapes(command):
    return [tuple(map(int, word.split(","))) for word in command.split()[:2]]


@pytest.mark.parametrize("operator", CALLS)
def test_every_operator_is_explained(operator, capsys):
    command, options = CALLS[operator]
    given = [] if operator in ("conv1d", "conv2d", "conv3d") else ["--operator", operator]
    assert main(["explain", *command.split(), *given]) == 0
    out = capsys.readouterr().out
    assert main(["explain", *command.split(), *given, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert main(["explain", *command.split(), *given, "--brief"]) == 0
    brief = capsys.readouterr().out
    assert out.startswith(brief) and len(brief.splitlines()) == 3
    assert [line.split()[0] for line in brief.splitlines()] == ["runs", "takes", "why"]
    assert f"about {facts['milliseconds']:.3f} ms on {facts['threads']} thread" in brief
    assert facts["problem"] in " ".join(out.split())
    if options is not None:
        plan = getattr(ic, f"plan_{operator}")(*shapes(command), **options)
        assert out.strip() == plan.explain() and brief.strip() == plan.explain(brief=True)
        assert facts == json.loads(json.dumps(plan.facts()))


def test_the_three_lines_are_those_of_the_table(capsys):
    """The best candidate and the next one, with the times that the table has."""
    text = ic.plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3), padding=1).explain()
    brief, rest = text.split("\n\n", 1)
    table = re.findall(rf"^ +({NUMBER})  (\w.*); ", rest, re.MULTILINE)
    assert len(table) >= 2
    (best, name), (other, next_name) = table[:2]
    runs, takes, why = brief.splitlines()
    assert runs.split(maxsplit=1)[1] == name and f"about {best} on " in takes
    assert f"next best is {next_name}: about {other}, " in why
    longer = float(other[:-3]) / float(best[:-3])
    assert float(re.search(r"(\S+) times as long", why)[1]) == pytest.approx(longer, abs=0.01)


def test_no_direct_sum_is_estimated_above_the_measured_rate_of_fmas():
    """On every number of threads: the limit is what this machine does, not a nominal clock."""
    layers = ((1, 256, 28, 28), (256, 256, 1, 1)), ((1, 64, 56, 56), (64, 64, 5, 5))
    for threads in 1, 2:
        with ic.config(num_threads=threads):
            for shape in layers:
                facts = ic.plan_conv2d(*shape).facts()
                assert not facts["algorithm"].startswith("winograd")
                limit = facts["peak"] * facts["milliseconds"] / 1e3
                assert facts["flops"] <= limit
                machine = ic.plan_conv2d(*shape).arch
                cycles = facts["peak"] / facts["threads"] / clock(machine)
                assert cycles == pytest.approx(4 * machine.lanes(4)) and facts["peak_is_measured"]


def test_facts_of_a_gpu_name_no_limit():
    facts = ic.plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3), "bfloat16", device="sm_90a").facts()
    assert facts["device"] == "sm_90a" and facts["peak"] is None and facts["threads"] is None
    assert facts["candidates"][0]["milliseconds"] == facts["milliseconds"]


def test_an_algorithm_that_was_named_is_the_reason():
    plan = ic.plan_conv2d((1, 8, 9, 9), (8, 8, 3, 3), algorithm="implicit_gemm")
    assert plan.explain(brief=True).splitlines()[2].endswith("asked for by name")


def test_ways_with_parts_are_candidates_like_others():
    phases = {"stride": 2, "precision": "strict"}
    plan = ic.plan_conv_transpose2d((1, 8, 9, 9), (8, 4, 3, 3), **phases)
    facts = plan.facts()
    assert len(facts["parts"]) == 4
    assert facts["flops"] == plan.flops
    # Stores that lie a stride apart, and launches, take time too.
    assert facts["milliseconds"] > sum(part["milliseconds"] for part in facts["parts"])
    assert len(facts["candidates"]) == 2  # one pass over w may pack the filters
    assert {each["kernel"] for each in facts["refused"]} == {"fold"}


def test_the_lines_of_a_single_way_are_of_its_longest_part():
    """A complex convolution is one real convolution, which here has a part for each phase."""
    phases = {"stride": 2, "layout": "NHWC"}
    plan = ic.plan_conv_transpose2d((1, 5, 5, 4), (4, 4, 5, 5), "complex64", **phases)
    (real,) = plan.facts()["parts"]
    runs, takes, why = plan.explain(brief=True).splitlines()
    assert runs.split(maxsplit=1)[1] == plan.facts()["kernel"]
    assert f"about {plan.facts()['milliseconds']:.3f} ms" in takes
    other = real["candidates"][1]
    assert f"of its longest part, the next best is {other['kernel']}" in why
    assert why.endswith(f"{other['milliseconds'] / real['milliseconds']:.2f} times as long")


def test_plans_and_packed_filters_have_short_names():
    import numpy as np

    plan = ic.plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3), padding=1)
    w = np.ones((64, 64, 3, 3), np.float32)
    whole = [plan, plan.pack(w)]
    phases = ic.plan_conv_transpose2d((1, 8, 9, 9), (8, 4, 3, 3), stride=2)
    whole += [phases, phases.pack(np.ones((8, 4, 3, 3), np.float32))]
    for each in whole:
        assert len(repr(each)) <= 160 and "\n" not in repr(each)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("8,9 4,8", "w has 2 axes (4, 8); a filter has 3 to 5"),
        ("1,8,9,9 4,8,3,3 --input-shape 1,2", "conv2d has no --input-shape; leave it out"),
        ("1,8,9,9 4,8,3,3 --operator conv2d_input_grad", "needs --input-shape, such as"),
        ("1,8,9,9 4,8,3,3 --operator conv2d_weight_grad", "needs --weight-shape, such as"),
        ("1,8,9,9 4,8,3,3 --layout channels_last", "NHWC"),
    ],
)
def test_what_does_not_fit_an_operator_is_named(command, said, capsys):
    assert main(["explain", *command.split()]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_tune_measures_nothing_beside_other_work(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(plans, "disturbance", lambda threads: asked.append(threads) or "others")
    monkeypatch.setattr(tuning, "measure", None)  # a call would be a TypeError
    assert main(["tune", "1,64,56,56", "64,64,3,3"]) == 3
    assert capsys.readouterr().out == "others\nnothing was measured, and nothing is kept\n"
    assert asked == [ic.plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3)).facts()["threads"]]
