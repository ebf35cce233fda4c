"""Plan: one type for every device, and one cache of plans with one size."""

import pytest

import implicit_conv as ic

SHAPES = (1, 9, 9, 64), (64, 3, 3, 64)
OPTIONS = {"padding": 1, "layout": "NHWC", "weight_layout": "KRSC"}
DEVICES = ("cpu", "sm_80", "sm_90", "sm_100")


def plan_on(device, **options):
    return ic.plan_conv2d(*SHAPES, "bfloat16", device=device, **{**OPTIONS, **options})


@pytest.fixture(autouse=True)
def empty_cache():
    ic.clear_plan_cache()
    yield
    ic.clear_plan_cache()


@pytest.mark.parametrize("device", DEVICES)
def test_a_plan_is_a_plan_on_every_device(device):
    plan = plan_on(device)
    assert type(plan) is ic.Plan
    assert plan.problem.K == 64
    assert plan.arch is plan.engine.arch
    assert len(plan.candidates) >= 1
    assert plan.algorithm in ("implicit_gemm", "winograd_f2")
    assert plan.trace()
    assert plan.peak_bytes >= plan.workspace_bytes + 64 * 81 * 2  # y has 16 or 32 bits
    assert plan.flops == 2 * 64 * 64 * 9 * 81
    assert repr(plan) == f"<Plan of {plan.problem}: {plan.algorithm}>"


@pytest.mark.parametrize("device", DEVICES)
def test_candidates_have_an_estimate_or_a_refusal(device):
    lines = [line for line in plan_on(device).explain().splitlines() if line.startswith("  ")]
    table = [line for line in lines if " ms  " in line or "refused  " in line]
    assert len([line for line in table if " ms  " in line]) >= 1
    assert len([line for line in table if "refused  " in line]) >= 1


def test_a_candidate_for_other_strides_is_listed_once():
    """x copied is a candidate of its own here, and what runs where x cannot be read in place."""
    options = {"stride": 2, "padding": "same", "layout": "NHWC"}
    plan = ic.plan_conv2d((600, 512, 3), (16, 3, 5, 5), **options)
    names = [line for line in plan.explain().splitlines() if "takes any strides" in line]
    assert any("x copied" in name for name in names) and len(set(names)) == len(names)


def test_plans_of_all_devices_are_kept_counted_and_dropped():
    plans = [plan_on(device) for device in DEVICES]
    assert ic.plan_cache_size() == len(DEVICES)
    assert [plan_on(device) for device in DEVICES] == plans
    assert ic.plan_cache_size() == len(DEVICES)
    ic.clear_plan_cache()
    assert ic.plan_cache_size() == 0
    assert plan_on("sm_90") == plans[2]
    assert ic.plan_cache_size() == 1


@pytest.mark.parametrize("device", DEVICES)
def test_each_request_is_a_plan_of_its_own(device):
    for precision in ("standard", "strict"):
        plan_on(device, precision=precision)
    assert ic.plan_cache_size() == 2
