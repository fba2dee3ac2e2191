"""`aerobee pipeline ...`: jobs on Spark."""
