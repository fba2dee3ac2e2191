"""Ctrl-C while a command is loading, and after; see `aerobee_remoting.interrupts`, which servers share."""

from aerobee_remoting.interrupts import INTERRUPTED, interrupts_as_ever, loading_ends_quietly

__all__ = ["INTERRUPTED", "interrupts_as_ever", "loading_ends_quietly"]
