"""`aerobee topic`, `group` and `cluster`: looked at and changed through the admin calls."""
