from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from memopt.capture import Recording, TensorView, record
from memopt.errors import MemoptError
from memopt.graph import Replay, Role
from memopt.live_bytes import LiveBytes
from tests.memopt.capture import steps

every_step = pytest.mark.parametrize("build", steps.STEPS, ids=lambda build: build.__name__)


def state(resting: list[Any]) -> list[Tensor]:
    """Everything a step leaves behind, the generator's state included."""
    found = [torch.get_rng_state()]
    for thing in resting:
        if isinstance(thing, nn.Module):
            found += [p.grad for p in thing.parameters() if p.grad is not None]
            found += list(thing.buffers())
    return found


def built(build: Callable[[], steps.Built]) -> steps.Built:
    torch.manual_seed(0)
    return build()


def named(recording: Recording, name: str) -> list[int]:
    return [i for i, op in enumerate(recording.graph.operators) if op.name == name]


@every_step
def test_plain_peak_equals_the_measured_one(build: Callable[[], steps.Built]) -> None:
    with LiveBytes() as live:
        step, _ = built(build)
        live.reset_peak()
        before = live.live_bytes
        step()
    measured = live.peak_bytes - before
    for copy_saved in (False, True):
        step, resting = built(build)
        graph = record(step, resting=resting, copy_saved=copy_saved).graph
        assert graph.plain_peak_bytes() == measured


@every_step
@pytest.mark.parametrize("copy_saved", [False, True])
def test_recorded_step_leaves_what_the_plain_one_leaves(
    build: Callable[[], steps.Built], copy_saved: bool
) -> None:
    step, resting = built(build)
    step()
    expected = state(resting)
    step, resting = built(build)
    record(step, resting=resting, copy_saved=copy_saved)
    found = state(resting)
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "build",
    [steps.conv_net, steps.attention_views, steps.autocast, steps.two_micro_batches, steps.lstm],
    ids=lambda build: build.__name__,
)
def test_calls_run_again_give_the_same_results(build: Callable[[], steps.Built]) -> None:
    """Runs the whole iteration from its calls, with storages and geometry only."""
    step, resting = built(build)
    recording = record(step, resting=resting, calls=True)
    expected = state(resting)[1:]
    graph = recording.graph
    _, fresh = built(build)
    storages: dict[int, torch.UntypedStorage] = {}
    for name, number in recording.resting_names.items():
        position, _, rest = name.partition(".")
        thing = fresh[int(position)]
        tensor = thing.state_dict()[rest] if isinstance(thing, nn.Module) else thing
        storages[number] = tensor.untyped_storage()

    def real(tree: Any) -> Any:
        if isinstance(tree, TensorView):
            assert tree.value is not None
            storage = storages[graph.values[tree.value].storage]
            empty = torch.empty(0, dtype=tree.dtype)
            return empty.set_(storage, tree.offset, tree.shape, tree.stride)
        if isinstance(tree, tuple):
            return tuple(real(item) for item in tree)
        return tree

    assert recording.calls is not None
    with torch.no_grad():
        for call in recording.calls:
            keywords = {key: real(given) for key, given in call.kwargs.items()}
            result = call.function(*real(call.args), **keywords)
            results = result if isinstance(result, (tuple, list)) else (result,)
            views = call.results
            views = (views,) if isinstance(views, TensorView) or views is None else views
            for view, tensor in zip(views, results, strict=True):
                if view is not None:
                    storages.setdefault(graph.values[view.value].storage, tensor.untyped_storage())
    buffers = [b for thing in fresh if isinstance(thing, nn.Module) for b in thing.buffers()]
    assert buffers == [] or all(
        torch.equal(a, b) for a, b in zip(buffers, expected[-len(buffers) :], strict=True)
    )
    kept = [
        storages[number]
        for number, storage in enumerate(graph.storages)
        if storage.role is Role.RESULT
    ]
    grads = expected[: len(expected) - len(buffers)]
    assert len(kept) == len(grads) > 0
    assert sorted(bytes(s.tolist()) for s in kept) == sorted(
        bytes(g.untyped_storage().tolist()) for g in grads
    )


def test_graph_of_a_small_step_derived_by_hand() -> None:
    """loss = sum(relu(x w)), x given."""
    weight, x = nn.Parameter(torch.ones(3, 4)), torch.ones(2, 3)
    recording = record(lambda: torch.relu(x @ weight).sum().backward(), resting=[x, weight])
    graph = recording.graph
    assert recording.resting_names == {"0": 0, "1": 1}
    (mm, mm_back), (relu,) = named(recording, "aten::mm"), named(recording, "aten::relu")
    product, activation = 2, 3  # values, after those of x and the weight
    assert graph.operators[mm].reads == (0, 1)
    assert graph.operators[mm].makes == (product,)
    assert graph.operators[relu].reads == (product,)
    assert graph.operators[relu].makes == (activation,)
    # Autograd saves x for the weight's gradient, and relu's result.
    assert graph.saved == (0, activation)
    (threshold,) = named(recording, "aten::threshold_backward")
    assert [group.ordinals for group in recording.unpacks] == [(1,), (0,)]
    assert recording.unpacks[0].before < threshold < recording.unpacks[1].before < mm_back
    # The product dies as relu has run; the activation once its node has computed.
    assert graph.last_use[2] == relu
    assert graph.last_use[3] == recording.saved[1].released_after
    assert threshold <= graph.last_use[3] < mm_back
    first_backward = next(i for i, op in enumerate(graph.operators) if op.backward)
    assert all(op.backward == (i >= first_backward) for i, op in enumerate(graph.operators))
    assert relu < first_backward < threshold
    roles = [storage.role for storage in graph.storages]
    assert roles[:4] == [Role.RESTING, Role.RESTING, Role.ACTIVATION, Role.ACTIVATION]
    assert [s.size_bytes for s in graph.storages if s.role is Role.RESULT] == [weight.nbytes]


def test_returned_output_is_a_result() -> None:
    weight = nn.Parameter(torch.ones(3))

    def step() -> Tensor:
        loss = (weight * 2).sum()
        loss.backward()
        return loss

    sizes = sorted(s.size_bytes for s in record(step).graph.storages if s.role is Role.RESULT)
    assert sizes == [4, 12]


def test_batch_norm_writes_running_statistics_it_does_not_read() -> None:
    step, resting = built(steps.conv_net)
    recording = record(step, resting=resting)
    graph, names = recording.graph, recording.resting_names
    norm = graph.operators[named(recording, "aten::native_batch_norm")[0]]
    written = {graph.values[v].storage: graph.values[v].version for v in norm.makes}
    assert written[names["0.1.running_mean"]] == written[names["0.1.running_var"]] == 1
    read = {graph.values[v].storage for v in norm.reads}
    assert names["0.1.running_mean"] not in read
    assert names["0.1.weight"] in read
    assert norm.replay is Replay.PURE
    counter = graph.operators[named(recording, "aten::add_.Tensor")[0]]
    assert counter.replay is Replay.NEVER


def test_batch_norm_in_evaluation_writes_nothing() -> None:
    norm, x = nn.BatchNorm1d(4).eval(), torch.randn(3, 4)
    recording = record(lambda: norm(x).sum().backward(), resting=[norm])
    operator = recording.graph.operators[named(recording, "aten::native_batch_norm")[0]]
    mean = recording.resting_names["0.running_mean"]
    assert mean in {recording.graph.values[v].storage for v in operator.reads}
    assert all(recording.graph.values[v].version == 0 for v in operator.makes)


def test_one_nodes_unpacks_are_one_group() -> None:
    net, x = nn.BatchNorm1d(4), torch.randn(3, 4)
    recording = record(lambda: net(x).sum().backward())
    assert [len(group.ordinals) for group in recording.unpacks] == [len(recording.saved)]


def test_in_place_result_is_a_new_version_and_views_are_none() -> None:
    step, resting = built(steps.in_place_relu)
    recording = record(step, resting=resting)
    graph = recording.graph
    relu = graph.operators[named(recording, "aten::relu_")[0]]
    (read,), (made,) = relu.reads, relu.makes
    assert graph.values[read].storage == graph.values[made].storage
    assert graph.values[made].version == graph.values[read].version + 1
    assert made in graph.saved
    for name in ("aten::view", "aten::detach", "aten::_unsafe_view"):
        assert all(graph.operators[i].makes == () for i in named(recording, name))


def test_random_operators_are_marked() -> None:
    step, resting = built(steps.dropout)
    recording = record(step, resting=resting)
    random = [op.name for op in recording.graph.operators if op.replay is Replay.RANDOM]
    assert len(random) == 1


@pytest.mark.parametrize(("dropout_p", "replay"), [(0.0, Replay.PURE), (0.5, Replay.RANDOM)])
def test_attention_is_random_only_with_dropout(dropout_p: float, replay: Replay) -> None:
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    recording = record(
        lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=dropout_p).sum().backward()
    )
    forward = [op for op in recording.graph.operators if not op.backward]
    worst = Replay.RANDOM if any(op.replay is Replay.RANDOM for op in forward) else Replay.PURE
    assert worst is replay


def test_custom_and_value_dependent_operators_are_never_replayed() -> None:
    @torch.library.custom_op("memopt_tests::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_autograd(lambda ctx, grad: grad * 2)
    x = torch.tensor([1.0, 0.0, 3.0], requires_grad=True)
    recording = record(lambda: twice(x)[x.detach().nonzero()].sum().backward())
    never = {op.name for op in recording.graph.operators if op.replay is Replay.NEVER}
    assert never == {"memopt_tests::twice", "aten::nonzero"}
    x.grad = None
    masked = record(lambda: x[x.detach() > 0].sum().backward())
    never = {op.name for op in masked.graph.operators if op.replay is Replay.NEVER}
    assert never == {"aten::index.Tensor"}


def test_collectives_are_never_replayed() -> None:
    x = torch.ones(3, requires_grad=True)

    def step() -> None:
        y = x * 2
        y.sum().backward()
        dist.all_reduce(x.grad)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        recording = record(step)
    finally:
        dist.destroy_process_group()
    (reduced,) = named(recording, "c10d::allreduce_")
    assert recording.graph.operators[reduced].replay is Replay.NEVER


def test_copies_tell_when_the_program_lets_go() -> None:
    """`hidden` is saved by exp; a local holds it until the function returns, one operator later."""
    x = torch.ones(5, requires_grad=True)

    def model(x: Tensor) -> Tensor:
        hidden = (x * 2).exp()
        first = hidden.sin()
        return first.cos()

    recording = record(lambda: model(x).sum().backward(), copy_saved=True)
    graph = recording.graph
    assert recording.program_last_use is not None
    (exp,), (cos,) = named(recording, "aten::exp"), named(recording, "aten::cos")[-1:]
    hidden = graph.values[graph.operators[exp].makes[0]].storage
    last_forward = max(i for i in named(recording, "aten::cos") if not graph.operators[i].backward)
    # The hook's own detach may be the last operator before the return.
    assert last_forward <= recording.program_last_use[hidden] <= last_forward + 1
    assert graph.last_use[hidden] > cos > recording.program_last_use[hidden]
    assert record(lambda: model(x).sum().backward()).program_last_use is None


def test_calls_keep_no_tensor_alive() -> None:
    x = torch.ones(4, requires_grad=True)
    seen = []

    def step() -> None:
        y = x.exp()
        seen.append(weakref.ref(y))
        y.sum().backward()

    recording = record(step, calls=True)
    assert recording.calls is not None
    assert len(recording.calls) == len(recording.graph.operators)
    assert seen[0]() is None


def test_operators_inside_a_tensor_of_tensors_are_seen() -> None:
    a, b = torch.ones(3), torch.ones(3)
    two = TwoTensor(a, b).requires_grad_()
    recording = record(lambda: two.exp().sum().backward(), resting=[a, b])
    assert len(named(recording, "aten::exp")) == 2
    assert any(saved.view.value is None for saved in recording.saved)


def test_backward_through_a_kept_graph_twice() -> None:
    x = torch.ones(4, requires_grad=True)

    def step() -> None:
        loss = x.exp().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    recording = record(step)
    assert [group.ordinals for group in recording.unpacks] == [(0,), (0,)]


def test_step_without_backward_is_refused() -> None:
    with pytest.raises(MemoptError, match="no backward pass"):
        record(lambda: torch.ones(3) + 1)


def test_recording_inside_a_recording_is_refused_and_the_outer_one_goes_on() -> None:
    x = torch.ones(3, requires_grad=True)

    def step() -> None:
        y = x * 2
        with pytest.raises(MemoptError, match="one step at a time"):
            record(lambda: None, resting=[x])
        y.sum().backward()

    assert record(step, resting=[x]).resting_names == {"0": 0}


@pytest.mark.parametrize("in_backward", [False, True])
def test_exception_in_the_step_is_passed_on_and_the_next_recording_is_right(
    in_backward: bool,
) -> None:
    x = torch.ones(3, requires_grad=True)
    fails = True

    def fail(grad: Tensor) -> None:
        if fails:
            raise KeyError("from the step")

    def step() -> None:
        y = x.exp()
        if in_backward:
            y.register_hook(fail)
        else:
            fail(y)
        y.sum().backward()

    with pytest.raises(KeyError, match="from the step"):
        record(step)
    assert not is_in_torch_dispatch_mode()
    assert x.exp().grad_fn._saved_result.grad_fn is not None  # no hook gave it back bare
    fails = False
    first, second = record(step), record(step)
    assert first.graph.plain_peak_bytes() == second.graph.plain_peak_bytes() > 0


def test_saved_tensor_changed_in_place_is_refused() -> None:
    x = torch.ones(3, requires_grad=True)

    def step() -> None:
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step()
    with pytest.raises(MemoptError, match="changed in place after it was saved"):
        record(step)


def test_memory_stays_flat_over_recordings() -> None:
    step, resting = built(steps.mlp)
    record(step, resting=resting)
    attributes = [sorted(vars(p.untyped_storage())) for p in resting[0].parameters()]
    record(step, resting=resting)
    assert [sorted(vars(p.untyped_storage())) for p in resting[0].parameters()] == attributes
