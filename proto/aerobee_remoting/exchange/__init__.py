"""Requests and answers on one connection, whoever opened it, and the table of what may be asked."""
