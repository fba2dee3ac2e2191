"""`aerobee store ...`: look into a store folder and mend it."""
