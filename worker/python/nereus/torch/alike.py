"""Checks that the workers' loops are alike in what they do to gradients outside of backward.

A worker sees its own loop only. So it sends numbers with each step, the flags, and gets the means
of all workers' flags. If these show that workers make different updates, the job ends before the
next update.
"""

from ..errors import FAILED_PRECONDITION, ModelMismatch, NereusError
from .watched import raw_gradient

# Number of flags:
#   is_late      the last step's gradients came in optimizer.step()
#   has_changed  the program changed the mean gradients of the last step before its update
#   turn         number of this step since the last update, modulo TURNS
#   adds         means by factors are added to gradients that were there
#   lacks        this worker has no state of its optimizers, whose state is not known
FLAGS = 5
TURNS = 251  # So that 16 bits hold a turn.

_ROUNDING = 1e-4  # Largest error of a mean of flags.


class Alike:
    """Notes what this worker's loop does, and judges the flags of all workers.

    slots: of all parameters. unknown: names of the optimizers, if their state is not known, so that
    workers that join cannot get it; else "".
    is_late: True if the last step's gradients came in optimizer.step(), unasked.
    """

    def __init__(self, optimizers, slots, unknown=""):
        self._optimizers = optimizers
        self._slots = slots
        self._unknown = unknown
        # For each parameter, address and version of its gradient when a pass, a step of the job
        # or an update had ended.
        self._marks = {}
        self.is_late = False
        self._has_changed = False
        self._turn = 0  # Steps of the job since the last update.
        self._sent_turn = 0  # That of the last step that was sent.
        self._lacks = False  # As it was sent.

    # ---- The gradients of this worker.

    def mark(self):
        """Notes the gradients as they are now."""
        self._marks = {slot.index: _mark_of(raw_gradient(slot.parameter)) for slot in self._slots}

    def changed(self):
        """Returns the slots whose gradient is another one than `mark` has noted, and not zero."""
        found = []
        for slot in self._slots:
            gradient = raw_gradient(slot.parameter)
            if gradient is not None and self._marks.get(slot.index) != _mark_of(gradient) \
                    and _has_values(gradient):
                found.append(slot)
        return found

    def check_update(self, used):
        """Checks the gradients that the optimizer is about to use. used: for each parameter, True
        if a worker had its gradient in the last step. Errors: NereusError, one is not a mean."""
        for slot in self._slots:
            gradient = raw_gradient(slot.parameter)
            if gradient is None or self._marks.get(slot.index) == _mark_of(gradient):
                continue
            self._has_changed = not self.is_late
            if not used[slot.index] and _has_values(gradient):
                raise NereusError(
                    f"parameter {slot.name} has a gradient that the program has set, and no "
                    "backward pass of any worker has made: it is not averaged. Call "
                    "optimizer.synchronize() in place of backward, after all gradients are set",
                    FAILED_PRECONDITION)

    def note_update(self):
        """Called after an update."""
        self._turn = 0

    # ---- The flags of all workers.

    def flags(self, adds, is_first):
        """Returns the flags of a step. adds: that flag. is_first: True if it is this worker's
        first step."""
        self._lacks = bool(self._unknown) and (is_first or not any(
            any(optimizer.state.values()) for optimizer in self._optimizers))
        found = (self.is_late, self._has_changed, self._turn % TURNS, adds, self._lacks)
        self._sent_turn, self._turn = self._turn, self._turn + 1
        self.forget()
        return found

    def forget(self):
        """Forgets what was noted of the last step. Called when the job has gone back."""
        self.is_late = self._has_changed = False

    def judge(self, means, step):
        """Returns why the job must end, "" if it need not. means: of the flags of a step. Errors:
        ModelMismatch, this worker must end."""
        is_late, has_changed, turn, adds, lacks = means
        if self._lacks and lacks < 1 - _ROUNDING:
            raise ModelMismatch(
                f"the job is at step {step}, and the state of {self._unknown} is "
                "not known, so that this worker cannot get it from the others: with such an "
                "optimizer no worker can join a job that has begun", FAILED_PRECONDITION)
        if abs(turn - self._sent_turn % TURNS) > _ROUNDING:
            return (f"step {step} of the job is number {self._sent_turn + 1} since this worker's "
                    "last optimizer.step(), and not on all workers: they must do equally many "
                    "averaged backward passes before an update. A worker without a batch calls "
                    "optimizer.synchronize() in place of backward")
        if is_late and has_changed:
            # Gradients came late on one worker in the last step, after others had changed theirs.
            return (f"in step {step - 1} backward reached no parameter on a worker, which got the "
                    "mean gradients in optimizer.step(), and workers changed gradients between "
                    "backward and step (clipping, for example), which it could not: call "
                    "optimizer.synchronize() after backward, before gradients are changed")
        if _ROUNDING < adds < 1 - _ROUNDING:
            return (f"in step {step} gradients were added to those of the step before on some "
                    "workers, and others had set theirs to zero: set gradients to zero on all "
                    "workers alike, also where a worker has no batch")
        return ""


def _has_values(gradient):
    return bool((gradient._values() if gradient.is_sparse else gradient).any())


def _mark_of(gradient):
    """Returns a value that changes with the gradient, without keeping it; None for no gradient."""
    if gradient is None:
        return None
    if gradient.is_sparse:
        return id(gradient)
    return gradient.data_ptr(), gradient._version
