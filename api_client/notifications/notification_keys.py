"""Names the Redis keys of notifications."""

from __future__ import annotations

from api_client.contract.keys import KeyNames, named_key, named_keys


class NotificationKeys(KeyNames):
    """Names the Redis keys under which an installation's notifications are stored."""

    #: Hash: notifications that wait to be sent or were given up, by id.
    notifications = named_key("notifications")
    #: Sorted set: waiting notifications by the time of the next delivery, in milliseconds.
    due = named_key("notifications:due")
    #: Sorted set: notifications that were given up, by the time of giving up.
    dead = named_key("notifications:dead")
    #: Sorted set: every notification by the time it was put, so that none is put twice.
    said = named_key("notifications:said")
    #: String: the process that sends notifications now; expires after a minute.
    sender = named_key("notifications:sender")
    #: String: a relay has just looked for troubles of this monitor.
    watched = named_keys("notifications:watched:")

    def searched_until(self, turn_list: str) -> str:
        """Return the key that stores how far a list of turns was searched. ``turn_list`` is the key of that list.

        The stored value is a time in milliseconds. Later turns may still need notifications.
        """
        return self.key_named(f"notifications:looked:{turn_list.rpartition(':')[2]}")
