"""Several brokers as one service: where each has its folder, ports and name, and who starts, watches and ends them."""
