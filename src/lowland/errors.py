"""The one exception for a mistake in what the user handed over."""


class InputError(ValueError):
    """Something given to Lowland cannot be used: what was expected, what came, what to do.

    The command line prints its message on one line and exits with code 2; anything else that is
    raised is a defect of Lowland itself and keeps its traceback.
    """
