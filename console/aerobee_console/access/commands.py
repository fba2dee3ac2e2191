"""`aerobee access ...`: the commands about who may come in."""

from cyclopts import App

__all__ = ["app"]

app = App("access", help="Who may come in: certificates, and accounts of RocketMQ 4.x.", help_epilogue="")
app.command("aerobee_console.access.certificates:certificates", name="certificates")
app.command("aerobee_console.access.imports:import_accounts", name="import")
