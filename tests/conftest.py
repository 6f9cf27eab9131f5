"""How property tests are run.

`make test` tries the same examples each time, so that a red build tells of the change it builds. `make fuzz` draws new
ones, and many more. No example is judged by how long it took, which says more of the machine than of us.
"""

from hypothesis import settings

settings.register_profile("cosmodrome", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile("cosmodrome")
