"""What a capture file can do wrong."""


class CaptureError(ValueError):
    """The file is no readable capture."""


class CaptureWarning(UserWarning):
    """The capture was read, but not all of it, or its times are not to be trusted."""


class CaptureNote(CaptureWarning):
    """All of the capture was read; this is what was done to it."""
