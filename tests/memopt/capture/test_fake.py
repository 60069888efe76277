from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from memopt.capture import CostTable, fake_copy, fingerprint, record, record_fake
from memopt.errors import MemoptError
from memopt.live_bytes import LiveBytes
from tests.memopt.capture import steps

# In torch 2.13, fake layer_norm keeps statistics in bf16 (the CPU's kernel: fp32), and an in-place
# write through a view is followed by views that a real one does without.
NOT_THE_SAME = [steps.autocast, steps.attention_views]


@pytest.mark.parametrize(
    "build", [s for s in steps.STEPS if s not in NOT_THE_SAME], ids=lambda build: build.__name__
)
def test_fake_recording_is_the_real_one(build: Callable[[], steps.Built]) -> None:
    """Operators, values, lifetimes, saved tensors and unpacks; the program's lifetimes too."""
    step, resting = build()
    real = record(step, resting=resting, calls=True, copy_saved=True)
    fake = record_fake(build, calls=True)
    assert fake.calls == real.calls
    assert fake.graph.values == real.graph.values
    assert fake.graph.plain_peak_bytes() == real.graph.plain_peak_bytes()
    assert fake.program_last_use == real.program_last_use
    assert fake.resting_names == real.resting_names
    assert fingerprint(fake) == fingerprint(real)


@pytest.mark.parametrize("build", NOT_THE_SAME, ids=lambda build: build.__name__)
def test_fake_recording_makes_the_same_values_where_it_differs(
    build: Callable[[], steps.Built],
) -> None:
    step, resting = build()
    real, fake = record(step, resting=resting).graph, record_fake(build).graph
    assert [(op.name, op.makes) for op in fake.operators if op.makes] == [
        (op.name, op.makes) for op in real.operators if op.makes
    ]
    assert fake.values == real.values
    assert fake.saved == real.saved
    assert fake.plain_peak_bytes() == real.plain_peak_bytes()


def test_fake_peak_at_another_batch_size_is_what_it_measures_there() -> None:
    def build(batch: int) -> steps.Built:
        return steps.conv_net(batch)

    step, _ = build(37)
    with LiveBytes() as live:
        step()
    assert record_fake(lambda: build(37)).graph.plain_peak_bytes() == live.peak_bytes


def test_fake_copy_of_a_model_leaves_it_as_it_was() -> None:
    inner = nn.Linear(4, 4)
    model = nn.Sequential(inner, nn.BatchNorm1d(4), inner)
    model.scale = torch.full((4,), 2.0)  # neither parameter nor buffer
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def build() -> steps.Built:
        copied = fake_copy(model)
        x = torch.randn(6, 4)
        return lambda: (copied(x) * copied.scale).sum().backward(), [copied, x]

    fake = record_fake(build)
    x = torch.randn(6, 4)
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
    assert all(p.grad is None for p in model.parameters())
    real = record(lambda: (model(x) * model.scale).sum().backward(), resting=[model, x])
    assert fingerprint(fake) == fingerprint(real)


def test_batch_too_large_to_exist_is_recorded() -> None:
    small, huge = (record_fake(lambda b=b: steps.mlp(b)).graph for b in (2**10, 2**40))
    assert huge.plain_peak_bytes() > 2**29 * small.plain_peak_bytes()


def test_costs_come_from_the_table() -> None:
    table = CostTable()
    graph = record_fake(steps.mlp, costs=table).graph
    assert {op.cost_us for op in record_fake(steps.mlp).graph.operators} == {0.0}
    costs = {op.name: op.cost_us for op in graph.operators}
    assert costs["aten::t"] == 0
    assert costs["aten::addmm"] > 0
    assert graph.total_cost_us() > 0


def with_step(loss: Callable[[Tensor], Tensor]) -> Callable[[], steps.Built]:
    def build() -> steps.Built:
        x = torch.randn(4, requires_grad=True)
        return lambda: loss(x).sum().backward(), [x]

    return build


def test_sizes_that_depend_on_values_are_refused() -> None:
    with pytest.raises(MemoptError, match=r"aten\.nonzero.*depends on values"):
        record_fake(with_step(lambda x: x[x.detach().nonzero()]))
    with pytest.raises(MemoptError, match="depends on values"):
        record_fake(with_step(lambda x: x * x.detach().sum().item()))
    with pytest.raises(MemoptError, match="depends on values"):
        record_fake(with_step(lambda x: x if x.detach().sum() > 0 else -x))


def test_operators_without_a_fake_implementation_are_refused() -> None:
    with torch.library._scoped_library("memopt_tests", "FRAGMENT") as library:
        library.define("no_fake(Tensor x) -> Tensor")
        library.impl("no_fake", lambda x: x * 2, "CPU")
        with pytest.raises(MemoptError, match=r"no_fake.*no fake implementation"):
            record_fake(with_step(torch.ops.memopt_tests.no_fake.default))


def test_real_tensors_in_a_fake_step_are_refused() -> None:
    real = torch.ones(4)
    with pytest.raises(MemoptError, match="inside `build`"):
        record_fake(with_step(lambda x: x * real))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_device_that_is_not_here_is_refused() -> None:
    model = nn.Linear(4, 4)

    def build() -> steps.Built:
        copied = fake_copy(model, device="cuda")
        x = torch.randn(2, 4, device="cuda")
        return lambda: copied(x).sum().backward(), [copied, x]

    with pytest.raises(MemoptError, match=r"cuda.* is not on this machine"):
        record_fake(build)


def test_fake_step_without_backward_and_the_recording_after_an_error() -> None:
    with pytest.raises(MemoptError, match="no backward pass"):
        record_fake(lambda: (lambda: None, []))
    with pytest.raises(ZeroDivisionError):
        record_fake(lambda: (lambda: 1 / 0, []))
    step, resting = steps.mlp()
    real = record(step, resting=resting)
    assert fingerprint(record_fake(steps.mlp)) == fingerprint(real)
    assert type(torch.ones(1)) is Tensor
