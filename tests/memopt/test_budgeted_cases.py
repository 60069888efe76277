"""What else a training loop does while it holds a budget, each with its right value."""

from __future__ import annotations

import copy
import gc
import io
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memopt
from memopt.capture import CostTable
from memopt.controlled import controlled
from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.execute import PlannedPass, Program
from memopt.live_bytes import LiveBytes
from memopt.plan import trace
from memopt.schedule import Gap, Lives, Schedule

COSTS = CostTable(num_runs=1)


def deep(layers: int = 6, width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    chain: list[nn.Module] = []
    for _ in range(layers):
        chain += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh()]
    return nn.Sequential(*chain, nn.Linear(width, 4))


def rows(num_rows: int = 256, width: int = 32) -> Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(1))


def least_bytes(model: nn.Module, *args: Any) -> int:
    model = copy.deepcopy(model)
    with pytest.raises(BudgetTooSmallError) as caught:
        memopt.budget(model, 1, costs=COSTS).plan(*args)
    return caught.value.least_bytes


def held(model: nn.Module, *args: Any, share: float = 1.0) -> tuple[nn.Module, memopt.Budget]:
    """A copy of the model under a budget of `share` times the least."""
    twin = copy.deepcopy(model)
    return twin, memopt.budget(twin, int(least_bytes(model, *args) * share), costs=COSTS)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


def peak_bytes(step: Callable[[], object]) -> int:
    with LiveBytes() as live:
        step()
    return live.peak_bytes


def test_peak_is_the_predicted_one_and_within_every_budget() -> None:
    model, x = deep(), rows()

    def step(net: nn.Module) -> None:
        output = net(x)
        output.backward(torch.ones_like(output))

    plain = peak_bytes(lambda: step(copy.deepcopy(model)))
    least = least_bytes(model, x)
    measured = []
    for share in (1.0, 0.8, 0.6, 0.4, 0.0):
        budget_bytes = int(least + share * (plain - least))
        twin = copy.deepcopy(model)
        plan = memopt.budget(twin, budget_bytes, costs=COSTS).plan(x)
        peak = peak_bytes(lambda twin=twin: step(twin))  # type: ignore[misc]
        assert peak <= budget_bytes
        assert plan.peak_bytes * 0.98 <= peak <= plan.peak_bytes
        measured.append(peak)
    assert measured == sorted(measured, reverse=True)
    assert measured[-1] < measured[0] * 0.7


def test_a_roomy_budget_drops_nothing_and_adds_no_hooks() -> None:
    model, x = deep(), rows()
    plan = memopt.budget(model, "1GiB", costs=COSTS).plan(x)
    assert not plan.schedule.drops
    assert plan.overhead == 0
    hooks = []
    model[0].register_forward_hook(lambda *_: hooks.append(saved_tensors_hooks()))
    model(x)
    assert hooks == [None]


def saved_tensors_hooks() -> object:
    """Those in force now; None for none."""
    found: object = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    return found


def test_statistics_and_counters_are_updated_once() -> None:
    model, x = deep(), rows()
    twin, _ = held(model, x)
    for net in (model, twin):
        net(x).sum().backward()
        assert net[1].num_batches_tracked == 1
    assert_same(list(model.buffers()), list(twin.buffers()))


def test_each_gradient_hook_fires_once() -> None:
    twin, _ = held(deep(), rows())
    counts = dict.fromkeys(range(len(list(twin.parameters()))), 0)
    for index, parameter in enumerate(twin.parameters()):

        def count(_: Tensor, index: int = index) -> None:
            counts[index] += 1

        parameter.register_post_accumulate_grad_hook(count)
    twin(rows()).sum().backward()
    assert set(counts.values()) == {1}


def test_another_shape_is_planned_before_it_runs() -> None:
    model = deep()
    twin, budget = held(model, rows(256), share=1.2)
    for num_rows in (256, 200, 260, 256):
        for net in (model, twin):
            net.zero_grad()
        x = rows(num_rows)
        budget.plan(x)  # its timing of operators is not the step's memory
        peak = peak_bytes(lambda x=x: twin(x).square().sum().backward())  # type: ignore[misc]
        model(x).square().sum().backward()
        assert peak <= budget.budget_bytes
        assert_same(gradients(model), gradients(twin))
    assert len(budget.plans) == 3
    with pytest.raises(BudgetTooSmallError, match="is too small: the least found for this step is"):
        twin(rows(2560))
    assert_same(list(model.buffers()), list(twin.buffers()))


def test_evaluation_runs_plainly_between_steps() -> None:
    model, x = deep(), rows()
    twin, budget = held(model, x, share=1.3)
    for net in (model, twin):
        net(x).sum().backward()
        net.eval()
        with torch.no_grad():
            net(rows(7))
        net.train()
        net(x).sum().backward()  # accumulates
    assert_same(gradients(model), gradients(twin))
    assert len(budget.plans) == 2
    twin.eval()(rows(5)).sum().backward()
    model.eval()(rows(5)).sum().backward()
    assert_same(gradients(model), gradients(twin))


def test_accumulated_gradients_count_in_the_budget() -> None:
    model, x = deep(width=64), rows(64, 64)
    gradient_bytes = sum(p.nbytes for p in model.parameters())
    twin, budget = held(model, x, share=1.5)

    def steps() -> None:
        for _ in range(3):
            twin(x).sum().backward()

    assert peak_bytes(steps) <= budget.budget_bytes
    plain, accumulating = budget.plans.values()
    assert accumulating.plain_peak_bytes > gradient_bytes
    assert accumulating.plain_peak_bytes >= plain.plain_peak_bytes


class Branching(nn.Module):
    """Goes another way when told, with tensors of the same shapes or others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.wide = nn.Linear(32, 48)
        self.back = nn.Linear(48, 32)
        self.skip: int | None = None
        self.wider = False

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            if index != self.skip:
                x = torch.tanh(layer(x)).exp()
            if index == 3 and self.wider:
                x = self.back(self.wide(x).exp())
        return x


@pytest.mark.parametrize(("skip", "wider"), [(2, False), (5, False), (None, True), (3, True)])
def test_another_branch_is_finished_in_the_budget_and_planned_next(
    skip: int | None, wider: bool
) -> None:
    torch.manual_seed(0)
    model, x = Branching(), rows()
    twin, budget = held(model, x, share=1.4)
    peaks = []
    for branch in (False, True, True, False, False):
        for net in (model, twin):
            assert isinstance(net, Branching)
            net.skip, net.wider = (skip, wider) if branch else (None, False)
            net.zero_grad()
        model(x).sum().backward()
        output = twin(x)
        peaks.append(peak_bytes(lambda output=output: output.sum().backward()))  # type: ignore[misc]
        del output
        assert_same(gradients(model), gradients(twin))
    assert "under policy" not in budget.describe()
    for branch in (True, False) * 4:
        for net in (model, twin):
            net.skip, net.wider = (skip, wider) if branch else (None, False)
            net.zero_grad()
            net(x).sum().backward()
        assert_same(gradients(model), gradients(twin))
    assert "1 kinds of pass under policy dtr_eq" in budget.describe()


def test_a_number_that_changes_unseen_is_an_error_and_no_wrong_gradient() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.scale = deep(), 1.0

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x) * self.scale
            return x

    model = Scaled()
    twin, _ = held(model, rows())
    twin(rows()).sum().backward()
    twin.zero_grad()
    twin.scale = 1.5  # type: ignore[assignment]
    with pytest.raises(MemoptError, match="a recomputed tensor differs from the one that was"):
        twin(rows()).sum().backward()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("share", [1.0, 1.7])
def test_kept_graphs_are_differentiated_again(in_place: bool, share: float) -> None:
    model, x = deep(), rows()
    if in_place:
        model = nn.Sequential(*(nn.ReLU(inplace=True) if type(m) is nn.Tanh else m for m in model))
    twin, _ = held(model, x, share=share)
    for net in (model, twin):
        output = net(x).square().sum()
        output.backward(retain_graph=True)
        output.backward(retain_graph=True)
        output.backward()
    assert_same(gradients(model), gradients(twin))


def test_gradients_of_some_inputs_and_of_the_gradient() -> None:
    model, x = deep(), rows().requires_grad_()
    twin, _ = held(model, x)
    found = []
    for net in (model, twin):
        output = net(x).square().sum()
        some = torch.autograd.grad(output, [net[0].weight, x], retain_graph=True)
        (first,) = torch.autograd.grad(output, [x], create_graph=True)
        second = torch.autograd.grad(first.square().sum(), [net[3].weight, x])
        found.append([*some, *second])
    assert_same(*found)


def test_several_forward_passes_wait_for_their_backward() -> None:
    model, x = deep(), rows()
    twin, _ = held(model, x)
    for net in (model, twin):
        first, second = net(x), net(x.flip(0))
        (first - second.detach()).square().sum().backward()
        second.sum().backward()
    assert_same(gradients(model), gradients(twin))


def test_a_caller_sees_valid_data_in_what_it_holds() -> None:
    model, x = deep(), rows()
    seen: list[Tensor] = []
    model[5].register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(x)
    twin, _ = held(model, x)
    twin(x).sum().backward()
    assert_same([seen[0]], [seen[-1]])
    assert_same([seen[0]], [torch.tanh(model[4](model[:4](x)))])


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_after_an_exception_the_next_step_is_right(where: str) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if state["fail"] == "forward":
                raise ZeroDivisionError
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            if state["fail"] == "backward":
                raise ZeroDivisionError
            return grad

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = deep(3), nn.Sequential(nn.Linear(4, 32), deep(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(Failing.apply(self.first(x)))  # type: ignore[no-untyped-call]

    state = {"fail": ""}
    model, x = Net(), rows()
    twin, _ = held(model, x)
    for net in (model, twin):
        state["fail"] = ""
        net(x).sum().backward()
        state["fail"] = where
        with pytest.raises(ZeroDivisionError):
            net(x).sum().backward()
        state["fail"] = ""
        net.zero_grad()
        net(x).sum().backward()
    assert_same(gradients(model), gradients(twin))
    assert saved_tensors_hooks() is None


def test_changes_in_place_that_backward_would_miss_are_errors() -> None:
    twin, _ = held(deep(), rows())
    x = rows()
    output = twin(x).sum()
    x.mul_(2)
    with pytest.raises(MemoptError, match="in place"):
        output.backward()
    output = twin(rows()).sum()
    with torch.no_grad():
        twin[6].weight.mul_(2)
    with pytest.raises(MemoptError, match="in place"):
        output.backward()


def test_copies_and_files_of_the_model_are_plain() -> None:
    twin, budget = held(deep(), rows())
    average = torch.optim.swa_utils.AveragedModel(twin)
    memory = io.BytesIO()
    torch.save(twin, memory)
    memory.seek(0)
    loaded = torch.load(memory, weights_only=False)
    for other in (average, loaded):
        other(rows()).sum().backward()
    assert not budget.plans
    twin(rows()).sum().backward()
    assert budget.plans
    budget.remove()
    planned = len(budget.plans)
    twin(rows(9)).sum().backward()
    assert len(budget.plans) == planned


def test_frozen_weights_and_other_arguments() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = deep()

        def forward(self, x: Tensor, *, scale: float, extra: dict[str, Any]) -> dict[str, Any]:
            hidden = self.layers(x * scale).exp()
            return {"y": hidden + extra["shift"], "parts": [hidden.detach(), extra["name"]]}

    torch.manual_seed(0)
    model = Net()
    model.layers[0].requires_grad_(False)
    extra = {"shift": torch.randn(4), "name": "a"}
    twin = copy.deepcopy(model)
    roomy = memopt.budget(copy.deepcopy(model), 2**40, costs=COSTS)
    plain = roomy.plan(rows(), scale=0.5, extra=extra).plain_peak_bytes
    budget = memopt.budget(twin, int(plain * 0.6), costs=COSTS)
    for net in (model, twin):
        net(rows(), scale=0.5, extra=extra)["y"].sum().backward()
    assert_same(gradients(model), gradients(twin))
    (plan,) = budget.plans.values()
    assert plan.schedule.drops


def test_random_state_is_left_alone_by_planning() -> None:
    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate()

    model = deep()
    before = states()
    memopt.budget(model, "1GiB", costs=COSTS).plan(rows())
    assert states() == before


def test_a_model_that_cannot_be_traced_is_one_clear_error() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x[x[:, 0] > 0])

    model = Counting()
    memopt.budget(model, "1MiB", costs=COSTS)
    with pytest.raises(MemoptError, match="depends on values") as caught:
        model(rows())
    assert "\n" not in str(caught.value)
    with torch.no_grad():
        model(rows())


class Chain(nn.Module):
    """2,000 operators in a row."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2000):
            x = torch.sin(x)
        return x


@pytest.mark.parametrize(
    ("size", "choice", "message"),
    [
        (0, {}, "memory budget 0 must be at least one byte"),
        (-5, {}, "memory budget -5 must be at least one byte"),
        ("0", {}, "at least one byte"),
        ("1GiB", {"policy": "lru"}, "lru"),
        ("1GiB", {"planner": "best"}, "planner 'best' is unknown"),
    ],
)
def test_bad_arguments_are_refused_before_the_model_is_touched(
    size: str | int, choice: dict[str, str], message: str
) -> None:
    model = deep()
    with pytest.raises(MemoptError, match=message):
        memopt.budget(model, size, **choice)  # type: ignore[arg-type]
    assert not model._forward_pre_hooks


@pytest.mark.slow
def test_a_deep_chain_is_recomputed_without_recursion() -> None:
    x = rows(4, 8).requires_grad_()
    step = controlled(trace(Chain(), (x,)))
    first = step.graph.unpacks[0]
    # Everything is made again, from the input, before the first node of backward.
    drops = {
        Gap(gap.value, gap.start, first)
        for gaps in Lives(step.graph).gaps
        for gap in gaps
        if gap.start < first - 1
    }
    program = Program(step, Schedule(frozenset(drops)))
    assert max(len(group.steps) for group in program.groups) > 1900
    (resting,) = program.resting
    found = []
    for is_planned in (False, True):
        forward_pass = PlannedPass(program, {resting: x.detach()})
        with forward_pass.hooks() if is_planned else nullcontext():
            output = Chain()(x)
        forward_pass.close()
        (gradient,) = torch.autograd.grad(output.sum(), [x])
        found.append([gradient])
    assert_same(*found)


@pytest.mark.slow
def test_time_and_memory_stay_flat_over_a_thousand_steps() -> None:
    twin, _ = held(deep(), rows())
    counts, seconds = [], []
    for step in range(1000):
        twin.zero_grad()
        start = time.process_time()
        twin(rows()).sum().backward()
        seconds.append(time.process_time() - start)
        if step in (10, 500, 999):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[2] - counts[1] < 50
    early, late = sorted(seconds[10:110])[50], sorted(seconds[-100:])[50]
    assert late < early * 1.5
