"""Local ports and accounts, as the servers look at them.

Touches  what these modules of remoting do. A door to them for the other modules here.
"""

from aerobee_remoting.ports import is_free, owner_of
from aerobee_remoting.start_failures import permission_refused, user_name
from aerobee_remoting.stop_signals import call_on_stop_signals

__all__ = ["call_on_stop_signals", "is_free", "owner_of", "permission_refused", "user_name"]
