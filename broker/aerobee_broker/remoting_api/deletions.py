"""Deleting queues for a request, and having it on disk; what goes wrong is the request's answer.

Touches  the store.
"""

import asyncio

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_service.turns.slices import in_slices
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore

__all__ = ["delete_queues", "save_deletions"]


async def delete_queues(store: MessageStore, topic: str) -> int:
    """Delete the queues of a topic; how many there were. RequestError when the disk refuses, which ends the broker."""
    try:
        return await in_slices(store.topics.deletion(topic))
    except StoreError as failed:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(failed)) from failed


async def save_deletions(store: MessageStore) -> None:
    """Return when it is on disk which topics were deleted. RequestError: they are, but a crash may bring them back."""
    try:
        await asyncio.to_thread(store.topics.save_deletions)
    except (OSError, StoreError) as error:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the topic is deleted, but that could not be written down, and a crash may bring it back: {error}",
        ) from error
