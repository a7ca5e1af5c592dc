"""A training that is watched goes on, whatever happens to who watches it."""

import contextlib
import warnings
from collections.abc import Iterator

from lowland.distributed import ranks
from lowland.errors import InputError
from lowland.probe import Probe
from lowland.usercode import described


class Sparing:
    """A monitor whose errors are warnings; it measures no more in this training then."""

    probe: Probe | None = None  # once the training has begun

    @contextlib.contextmanager
    def sparing(self) -> Iterator[None]:
        """Give up the probe after an error, and say so.

        Among several ranks the error is raised: the others would wait for this one's numbers.
        """
        try:
            yield
        except Exception as error:
            if ranks() > 1:
                raise
            self.probe = None
            why = error if isinstance(error, InputError) else described(error)
            warnings.warn(
                f"{type(self).__name__} measures nothing more in this training: {why}", stacklevel=2
            )
