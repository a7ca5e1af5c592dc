"""The one exception for a mistake in what the user handed over."""


class InputError(ValueError):
    """Something given to Lowland cannot be used: what was expected, what came, what to do.

    The command line prints its message on one line and exits with code 2; anything else that is
    raised is a defect of Lowland itself and keeps its traceback.

    Args:
        reason: what was expected and what came; all of the message where there is no advice.
        advice: what to pass instead, if that depends on who asked.
    """

    def __init__(self, reason: str, *, advice: str = "") -> None:
        super().__init__(f"{reason}; {advice}" if advice else reason)
        self.reason = reason
