"""What else a training loop does while it holds a budget, each with its right value."""

from __future__ import annotations

import copy
import gc
import io
import random
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memopt
from memopt.errors import BudgetTooSmallError
from tests.memopt.budgeted_steps import (
    COSTS,
    assert_same,
    deep,
    gradients,
    held,
    least_bytes,
    peak_bytes,
    rows,
    saved_tensors_hooks,
)


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


@pytest.mark.slow
def test_time_and_memory_stay_flat_over_a_thousand_steps() -> None:
    twin, _ = held(deep(), rows())
    counts, ratios = [], []
    plain = deep()

    def seconds_of(model: nn.Module) -> float:
        model.zero_grad()
        start = time.process_time()
        model(rows()).sum().backward()
        return time.process_time() - start

    for step in range(1000):
        # Beside a plain step at the same moment, whatever else the machine does.
        ratios.append(seconds_of(twin) / seconds_of(plain))
        if step in (10, 500, 999):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[2] - counts[1] < 50
    early, late = sorted(ratios[10:110])[50], sorted(ratios[-100:])[50]
    assert late < early * 1.5
