"""What autograd saves for backward and when it asks for it, through saved-tensor hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._C import _current_autograd_node, _current_graph_task_id

from memopt.capture.recording import SavedTensor, TensorView, UnpackGroup
from memopt.errors import MemoptError

if TYPE_CHECKING:
    from memopt.capture.recorder import Recorder


class SavedTensors:
    """Pack and unpack hooks that note order, grouping and release.

    With `copy`, autograd gets copies of what the iteration made, so that the ends of the storages
    themselves are those of the program's own references. Saved views of one storage share its copy.
    """

    def __init__(self, recorder: Recorder, *, copy: bool) -> None:
        self._recorder = recorder
        self._copy = copy
        self._copies: WeakValueDictionary[tuple[int, torch.dtype], Tensor] = WeakValueDictionary()
        self._views: list[TensorView] = []
        self._packed_after: list[int] = []
        self._released_after: dict[int, int] = {}
        self._groups: list[tuple[tuple[int, int], int, list[int]]] = []

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Context in which autograd's packing is seen."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _Handle.unpack)

    def saved(self, num_operators: int) -> tuple[SavedTensor, ...]:
        """Saved tensors by ordinal."""
        return tuple(
            SavedTensor(view, packed, self._released_after.get(ordinal, num_operators))
            for ordinal, (view, packed) in enumerate(
                zip(self._views, self._packed_after, strict=True)
            )
        )

    def unpacks(self) -> tuple[UnpackGroup, ...]:
        """Unpacks in order, one group for each run of a node."""
        return tuple(UnpackGroup(before, tuple(ordinals)) for _, before, ordinals in self._groups)

    def unpacked(self, ordinal: int) -> None:
        """Called as autograd asks for a saved tensor."""
        node = _current_autograd_node()
        if not self._recorder.is_open or node is None:
            return
        # A node unpacks before it computes, but the hooks' own `detach` comes in between.
        key = (_current_graph_task_id(), node._sequence_nr())
        if not self._groups or self._groups[-1][0] != key:
            self._groups.append((key, self._recorder.lifetimes.now + 1, []))
        self._groups[-1][2].append(ordinal)

    def released(self, ordinal: int) -> None:
        """Called as autograd lets go of a saved tensor."""
        if self._recorder.is_open:
            self._released_after[ordinal] = self._recorder.lifetimes.now

    def _pack(self, tensor: Tensor) -> _Handle:
        recorder = self._recorder
        ordinal = len(self._views)
        view = recorder.view(tensor)
        self._views.append(view)
        self._packed_after.append(recorder.lifetimes.now)
        if not self._copy or view.value is None or recorder.is_resting(view.value):
            return _Handle(self, ordinal, tensor, whole=tensor)
        whole = self._copy_of(tensor, view.value)
        with recorder.paused():
            copied = whole.as_strided(view.shape, view.stride, view.offset)
        return _Handle(self, ordinal, copied, whole=whole)

    def _copy_of(self, tensor: Tensor, value: int) -> Tensor:
        key = (value, tensor.dtype)
        whole = self._copies.get(key)
        if whole is None:
            storage = tensor.untyped_storage()
            with self._recorder.paused():
                whole = tensor.as_strided((storage.nbytes() // tensor.itemsize,), (1,), 0).clone()
            number = self._recorder.lifetimes.number(storage)
            assert number is not None
            self._recorder.lifetimes.begin_copy(whole.untyped_storage(), number)
            self._copies[key] = whole
        return whole


class _Handle:
    """What autograd holds for one saved tensor; `whole` keeps a copy findable for other views."""

    __slots__ = ("_ordinal", "_saving", "_tensor", "_version", "_whole")

    def __init__(
        self, saving: SavedTensors, ordinal: int, tensor: Tensor, *, whole: Tensor
    ) -> None:
        self._saving = saving
        self._ordinal = ordinal
        self._tensor = tensor
        self._version = tensor._version
        self._whole = whole

    def unpack(self) -> Tensor:
        # Autograd itself does not look, once there are hooks.
        if self._tensor._version != self._version:
            raise MemoptError(
                f"a tensor of shape {tuple(self._tensor.shape)} that backward needs was changed in "
                "place after it was saved; training without recording fails too: clone it first"
            )
        self._saving.unpacked(self._ordinal)
        return self._tensor

    def __del__(self) -> None:
        self._saving.released(self._ordinal)
