"""One recorded operator, ready to be run again on the values of a pass."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from memopt.capture.operators import facts
from memopt.capture.recording import Call, Recording, TensorView, views
from memopt.graph import Role, Value

Tensors = dict[int, Tensor]
"""Values that are there, each by a tensor of its home geometry (see `Homes`)."""

_Fetch = Callable[[Tensors], Any]


class Homes:
    """The geometry in which each value is kept: as its maker gives it."""

    def __init__(self) -> None:
        self._views: dict[int, TensorView] = {}

    def add(self, call: Call, makes: Container[int]) -> None:
        """Notes what a call gives."""
        for view in views(call.results):
            if view.value is not None and view.value in makes:
                self._views.setdefault(view.value, view)

    def of(self, value: int) -> TensorView | None:
        """Geometry of a value; None for one that no operator makes: resting tensors are found as
        they are, several of them may share a storage."""
        return self._views.get(value)

    def fetch(self, view: TensorView) -> _Fetch:
        """What gives a tensor of that geometry, where its value is there."""
        value = view.value
        assert value is not None
        if self._views.get(value) == view:
            return lambda tensors: tensors[value]
        return lambda tensors: seen_as(tensors[value], view)


def seen_as(tensor: Tensor, view: TensorView) -> Tensor:
    """Another view of a tensor's storage, with the same count of writes to it."""
    if tensor.dtype != view.dtype:
        num_elements = tensor.untyped_storage().nbytes() // tensor.itemsize
        tensor = tensor.as_strided((num_elements,), (1,), 0).view(view.dtype)
    return tensor.as_strided(view.shape, view.stride, view.offset)


class ReplayStep:
    """An operator and where its arguments come from and its results go.

    Attributes:
        reads: values that must be there.
        makes: values that are there afterwards.
    """

    def __init__(
        self,
        call: Call,
        reads: tuple[int, ...],
        makes: tuple[int, ...],
        bases: Mapping[int, int],
        homes: Homes,
    ) -> None:
        """One call, with numbers of values.

        Args:
            reads: resting ones included.
            makes: without new versions of resting ones.
            bases: of those that it makes by writing in place: the version written over, which is
                made again just for this.
        """
        self.reads = reads
        self.makes = makes
        self._renamed = tuple((old, new) for new, old in bases.items())
        self._results = _result_places(call, {made for made in makes if made not in bases})
        self._function = call.function
        args, kwargs = without_statistics(call)
        self._constants = list(args)
        self._fetched = [
            (place, fetch)
            for place, arg in enumerate(args)
            if (fetch := _fetch_of(arg, homes)) is not None
        ]
        self._kwargs = dict(kwargs)
        self._fetched_kwargs = [
            (name, fetch)
            for name, arg in kwargs.items()
            if (fetch := _fetch_of(arg, homes)) is not None
        ]

    def run(self, tensors: Tensors) -> None:
        """Runs the operator on what is there, and puts in what it makes."""
        args = self._constants.copy()
        for place, fetch in self._fetched:
            args[place] = fetch(tensors)
        if self._fetched_kwargs:
            kwargs = self._kwargs.copy()
            for name, fetch in self._fetched_kwargs:
                kwargs[name] = fetch(tensors)
            result = self._function(*args, **kwargs)
        else:
            result = self._function(*args, **self._kwargs)
        for value, path in self._results:
            found = result
            for index in path:
                found = found[index]
            tensors.setdefault(value, found)  # what is there already stays
        for old, new in self._renamed:
            tensors[new] = tensors.pop(old)


def recorded_step(recording: Recording, number: int, homes: Homes) -> ReplayStep:
    """The step of a recorded operator."""
    assert recording.calls is not None
    graph, operator = recording.graph, recording.graph.operators[number]
    own = _own(recording, number)
    bases = written_over(graph.values, operator.reads, own)
    return ReplayStep(recording.calls[number], operator.reads, own, bases, homes)


def can_replay(recording: Recording, number: int) -> bool:
    """Whether all that an operator makes can be found again in what it returns or writes to."""
    assert recording.calls is not None
    graph, own = recording.graph, _own(recording, number)
    bases = written_over(graph.values, graph.operators[number].reads, own)
    return gives_all(recording.calls[number], own, bases)


def gives_all(call: Call, makes: Iterable[int], bases: Container[int]) -> bool:
    """Whether a call returns, or writes to, all of these values."""
    found = {view.value for view in views(call.results)}
    return all(made in found or made in bases for made in makes)


def written_over(
    values: Sequence[Value], reads: Iterable[int], makes: Iterable[int]
) -> dict[int, int]:
    """Of what an operator makes by writing in place: the version that it read and wrote over."""
    held_by = {values[read].storage: read for read in reads}
    return {
        made: held_by[values[made].storage] for made in makes if values[made].storage in held_by
    }


def _own(recording: Recording, number: int) -> tuple[int, ...]:
    """What an operator makes, without new versions of resting values."""
    graph = recording.graph
    return tuple(
        made
        for made in graph.operators[number].makes
        if graph.storages[graph.values[made].storage].role is not Role.RESTING
    )


def without_statistics(call: Call) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Arguments with None for running statistics, which a replay must not update again."""
    args, kwargs = list(call.args), dict(call.kwargs)
    for argument in facts(call.function).statistics:
        if argument.position < len(args):
            args[argument.position] = None
        elif argument.name in kwargs:
            kwargs[argument.name] = None
    return tuple(args), kwargs


def _fetch_of(tree: Any, homes: Homes) -> _Fetch | None:
    """What builds an argument; None for one without tensors."""
    if isinstance(tree, TensorView):
        return homes.fetch(tree)
    if isinstance(tree, tuple):
        parts = [_fetch_of(item, homes) for item in tree]
        if any(part is not None for part in parts):
            pairs = list(zip(tree, parts, strict=True))
            return lambda tensors: [item if part is None else part(tensors) for item, part in pairs]
    return None


def _result_places(call: Call, fresh: set[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Where each fresh value lies in what the operator returns: its first place."""
    places: dict[int, tuple[int, ...]] = {}

    def walk(tree: Any, path: tuple[int, ...]) -> None:
        if isinstance(tree, TensorView):
            if tree.value in fresh:
                places.setdefault(tree.value, path)
        elif isinstance(tree, tuple):
            for index, item in enumerate(tree):
                walk(item, (*path, index))

    walk(call.results, ())
    return list(places.items())
