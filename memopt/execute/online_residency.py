"""Which saved tensors of an online pass are there: keeps, evicts and makes them again."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cache

import torch
from torch import Tensor

from memopt.arena import Block
from memopt.errors import MemoptError
from memopt.execute.guards import below_autograd, check_version
from memopt.execute.online_memory import OnlineMemory
from memopt.execute.online_values import MadeBy, PassStorages, Values
from memopt.execute.replay_step import Tensors
from memopt.policies import Policy, State


class Residency:
    """Tensors that a pass holds for autograd, and the resting ones that its operators read.

    Attributes:
        tensors: by value, each in its home geometry.
        state: as the policy sees it.
    """

    def __init__(
        self,
        memory: OnlineMemory,
        storages: PassStorages,
        values: Values,
        policy: Callable[[State], Policy],
    ) -> None:
        self.tensors: Tensors = {}
        self.state = State(memory.arena)
        self._memory = memory
        self._storages = storages
        self._values = values
        self._policy = policy(self.state)
        memory.has_addresses |= self._policy.uses_addresses
        self._versions: dict[int, int] = {}
        self._saved: Counter[int] = Counter()  # how many saved tensors look at a value
        self._holds: Counter[int] = Counter()  # how many evicted values need a root
        self._evicted: set[int] = set()
        self._pending: set[int] = set()  # there, but not known to be the pass's alone
        self._locked: set[int] = set()
        self._overwritten: Tensors = {}  # saved ones whose memory holds another value now
        self._released: deque[int] = deque()
        memory.join(self)

    def keep(self, value: int, tensor: Tensor, version: int) -> None:
        """Keeps a tensor that looks at a value, in the geometry of its home if it has one.

        Args:
            version: of its memory, in the count that writes of the program go on with.
        """
        self.tensors[value] = tensor
        self._versions[value] = version

    def made(self, operator: MadeBy) -> None:
        """An operator of the forward pass ran."""
        state, values, begun = self.state, self._values, self._storages.begun
        parents = tuple(read for read in operator.reads if not values.is_resting(read))
        number = len(values.operators) - 1
        own = set(operator.makes)
        for value in range(len(state.maker), len(values.maker)):
            if value in own:
                state.add(number, values.size_bytes(value), operator.cost_us, parents)
            else:
                state.add(None, values.size_bytes(value), 0.0, ())
        self._count(operator)
        for made in operator.makes:
            for parent in parents:
                state.children[parent].append(made)
            held, base = begun.get(values.tracker.values[made].storage), operator.bases.get(made)
            if base is not None:
                block = state.blocks[base]
                self._overwrite(base)
            else:
                block = None if held is None else self._memory.place(held, self._policy.side(made))
            self._enter(made, block)
        begun.clear()

    def saved(self, value: int) -> None:
        """Autograd saves a tensor that looks at a value that is kept."""
        self._saved[value] += 1
        self._pending.add(value)

    def released(self, value: int) -> None:
        """Autograd lets go of one; may be called at any time."""
        if self._memory.is_busy:
            self._released.append(value)
        else:
            self._release(value)

    def get(self, value: int) -> Tensor:
        """A saved value, made again if need be.

        Raises:
            MemoptError: it was written to, or cannot be made again.
        """
        if value in self._overwritten:
            # Right where the write does not count, as of RReLU's noise by RReLU itself.
            check_version(self._overwritten[value], self._versions[value])
            return self._overwritten[value]
        if value not in self.tensors:
            self.remake([value])
        tensor = self.tensors[value]
        check_version(tensor, self._versions[value])
        self.state.last_access_us[value] = self.state.clock_us
        self.state.candidates.discard(value)
        if value not in self._locked:
            self._pending.add(value)
        return tensor

    def lock(self, values: Iterable[int]) -> list[int]:
        """Makes sure that saved values are there, and stay until `unlock`; those it is about."""
        found = [v for v in values if v in self._saved and v not in self._overwritten]
        self._locked.update(found)
        self.state.candidates.difference_update(found)
        missing = [value for value in found if value not in self.tensors]
        if missing:
            self.remake(missing)
        return found

    def unlock(self, values: Iterable[int]) -> None:
        """They may be evicted again."""
        for value in values:
            self._locked.discard(value)
            if value in self.tensors:
                self._pending.add(value)

    def before_write(self, value: int) -> None:
        """The program is about to write over a value, in forward.

        What was evicted and needs it, if it cannot be made again itself, is made again now.
        """
        values = self._values
        if not values.is_resting(value) and values.roots(value, self.tensors) is not None:
            return
        lost = values.lose(value, self.tensors)
        missing = [one for one in lost if one in self._evicted]
        if missing:
            self.remake(missing)
        values.pin(lost)
        self.state.candidates.difference_update(lost)

    def evict(self, needed_bytes: int) -> bool:
        """Lets the policy choose; False if there is nothing to choose from."""
        self._find_candidates()
        chosen = self._policy.choose(needed_bytes) if self.state.candidates else ()
        for value in chosen:
            self.state.candidates.discard(value)
            roots = self._roots_there(value)
            if roots is None or not self._is_alone(value):
                self._pending.add(value)
                continue
            self._drop(value)
            self._evicted.add(value)
            self._holds.update(roots)
            self._memory.totals.num_evictions += 1
        return len(chosen) > 0

    def settle(self) -> None:
        """Notes what was released, and which storages have ended."""
        while self._released:
            self._release(self._released.popleft())
        ended, current = self._storages.ended, self._values.tracker.current
        while ended:
            number = ended.popleft()
            value = current[number] if number >= 0 else ~number
            if value not in self.tensors and self.state.is_resident[value]:
                self._leave(value)

    def remake(self, wanted: Sequence[int]) -> None:
        """Runs what makes values again, and whatever of what that needs is not there.

        What has a saved tensor stays, as long as there is room; the rest goes with its last reader.
        """
        memory, values, tensors = self._memory, self._values, self.tensors
        chain = values.chain(wanted, tensors)
        for leaf in chain.leaves:
            self._check_leaf(leaf)
        leaves = {leaf for leaf in chain.leaves if not values.is_resting(leaf)}
        locked = leaves.union(wanted) - self._locked
        self._locked |= locked
        self.state.candidates -= locked
        temporary, revived = set[int](), list[int]()
        was_busy, memory.is_busy = memory.is_busy, True
        with ExitStack() as stack:
            if memory.measuring is not None:
                stack.enter_context(memory.measuring.paused())
            stack.enter_context(below_autograd())
            try:
                for number in chain.order:
                    operator = values.operators[number]
                    for made in self._run_again(number, operator):
                        if made in self._saved and made not in self._overwritten:
                            revived.append(made)
                            if made not in wanted:
                                self._locked.add(made)
                                locked.add(made)
                        else:
                            temporary.add(made)
                    for value in {*operator.reads, *operator.makes}:
                        if chain.last_reader.get(value, -1) > number:
                            continue
                        if value in temporary:
                            temporary.discard(value)
                            tensors.pop(value, None)
                        elif value in locked and value not in wanted:
                            locked.discard(value)
                            self.unlock([value])
                    memory.settle()
            finally:
                for value in temporary:
                    tensors.pop(value, None)
                self.unlock(locked)
                self._unhold(revived)
                memory.is_busy = was_busy
                memory.settle()

    def _run_again(self, number: int, operator: MadeBy) -> list[int]:
        """Runs an operator whose reads are there; what it made that was not."""
        memory, tensors, totals = self._memory, self.tensors, self._memory.totals
        memory.make_room(operator.fresh_bytes)
        memory.note_peak(operator.fresh_bytes)  # what is there already is made once more, and goes
        missing = [made for made in operator.makes if made not in tensors]
        start = time.perf_counter_ns()
        self._values.step(number).run(tensors)
        totals.recompute_us += (time.perf_counter_ns() - start) / 1000
        totals.num_recomputes += 1
        self._count(operator)
        found = [made for made in missing if made in tensors]
        for made in found:
            self.state.num_recomputes[made] += 1
            self._versions[made] = tensors[made]._version
            storage = tensors[made].untyped_storage()
            held = memory.holding(storage)
            if held is not None and made in operator.bases:
                held.number = ~made
                self._leave(operator.bases[made])
            else:
                held = memory.hold(storage, ~made, self._storages.ended)
                memory.place(held, self._policy.side(made))
            self._evicted.discard(made)
            self._enter(made, held.block)
        return found

    def _check_leaf(self, value: int) -> None:
        tensor, version = self.tensors[value], self._versions[value]
        if not self._values.is_resting(value):
            check_version(tensor, version)
        elif tensor.untyped_storage().nbytes() < self._values.size_bytes(value):
            raise MemoptError(
                f"the memory of a weight or input of shape {tuple(tensor.shape)} was given back "
                "between forward and backward, and a recomputation needs it: keep sharded weights "
                "whole until backward (fully_shard's reshard_after_forward=False)"
            )
        elif tensor._version != version:
            raise MemoptError(
                f"a weight or input of shape {tuple(tensor.shape)} was changed in place between "
                "forward and backward, and a recomputation needs it: change it after backward"
            )

    def _find_candidates(self) -> None:
        for value in list(self._pending):
            if value not in self.tensors:
                self._pending.discard(value)
            elif (
                value not in self._locked
                and self._roots_there(value) is not None
                and self._is_alone(value)
            ):
                self._pending.discard(value)
                self.state.candidates.add(value)

    def _roots_there(self, value: int) -> frozenset[int] | None:
        roots = self._values.roots(value, self.tensors)
        return roots if roots is not None and self.tensors.keys() >= roots else None

    def _is_alone(self, value: int) -> bool:
        """Whether no tensor but the pass's own looks at the storage."""
        return _num_users(self.tensors[value]) == _num_users_of_one()

    def _release(self, value: int) -> None:
        self._saved[value] -= 1
        if self._saved[value]:
            return
        del self._saved[value]
        self.state.candidates.discard(value)
        if value in self._overwritten:
            del self._overwritten[value], self._versions[value]
        if value in self._evicted:
            self._evicted.discard(value)
            self._unhold([value])
        elif value in self.tensors and not self._holds[value]:
            self._drop(value)

    def _unhold(self, values: Iterable[int]) -> None:
        """Roots are not needed any more for the sake of these."""
        for value in values:
            for root in self._values.roots(value, self.tensors) or ():
                self._holds[root] -= 1
                if not self._holds[root] and root not in self._saved:
                    self._drop(root)

    def _drop(self, value: int) -> None:
        self._pending.discard(value)
        self.tensors.pop(value, None)
        self._versions.pop(value, None)

    def _overwrite(self, base: int) -> None:
        """The program wrote over a value: its memory is another's now."""
        if base in self.tensors:
            self._overwritten[base] = self.tensors.pop(base)
            self._pending.discard(base)
        self.state.candidates.discard(base)
        self._leave(base)

    def _count(self, operator: MadeBy) -> None:
        state = self.state
        state.clock_us += operator.cost_us
        for used in (*operator.reads, *operator.makes):
            state.last_access_us[used] = state.clock_us

    def _enter(self, value: int, block: Block | None) -> None:
        state = self.state
        state.is_made[value] = state.is_resident[value] = True
        state.blocks[value] = block
        if block is not None:
            state.value_of[block] = value
        self._policy.residency_changed(value)

    def _leave(self, value: int) -> None:
        """Contents are gone; the memory frees their block."""
        state = self.state
        state.is_resident[value] = False
        block, state.blocks[value] = state.blocks[value], None
        if block is not None:
            state.value_of.pop(block, None)
        self._policy.residency_changed(value)


def _num_users(tensor: Tensor) -> int:
    address = tensor.untyped_storage()._cdata
    return int(torch._C._storage_Use_Count(address))


@cache
def _num_users_of_one() -> int:
    """What PyTorch counts for a storage that one tensor looks at, seen from Python before."""
    return _num_users(torch.empty(1))
