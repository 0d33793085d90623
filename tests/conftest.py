"""What holds for all tests."""

from hypothesis import settings

# A shared machine may stop for longer than any example takes.
settings.register_profile("everstep", deadline=None)
settings.load_profile("everstep")
