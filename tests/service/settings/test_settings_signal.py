"""Pauses that follow the settings while they last."""

import asyncio

from aerobee_service.settings.settings_signal import SettingsSignal


class Length:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = asyncio.Event()

    def __call__(self) -> float:
        self.asked.set()
        return self.seconds


async def begun(signal: SettingsSignal, length: Length) -> asyncio.Task[None]:
    pause = asyncio.create_task(signal.pause(length))
    await length.asked.wait()
    return pause


async def test_a_shorter_length_ends_the_pause_that_is_under_way() -> None:
    """Who set a day instead of a second could take it back, and the task slept for a day all the same."""
    signal, length = SettingsSignal(), Length(86_400)
    pause = await begun(signal, length)
    length.seconds = 0
    signal.notify()
    async with asyncio.timeout(10):
        await pause


async def test_other_changes_do_not_end_it() -> None:
    signal, length = SettingsSignal(), Length(86_400)
    pause = await begun(signal, length)
    for _ in range(3):
        length.asked.clear()
        signal.notify()
        await length.asked.wait()
    assert not pause.done()
    pause.cancel()


async def test_it_ends_by_itself() -> None:
    async with asyncio.timeout(10):
        await SettingsSignal().pause(lambda: 0.001)


async def test_all_that_wait_are_told() -> None:
    signal, lengths = SettingsSignal(), [Length(86_400), Length(86_400)]
    pauses = [await begun(signal, length) for length in lengths]
    for length in lengths:
        length.seconds = 0
    signal.notify()
    async with asyncio.timeout(10):
        await asyncio.gather(*pauses)
