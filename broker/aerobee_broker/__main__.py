"""`python -m aerobee_broker`."""

from aerobee_service.program.interrupts import exit_with


def _program() -> int:
    from aerobee_broker.main import main

    return main()


if __name__ == "__main__":
    exit_with(_program)
