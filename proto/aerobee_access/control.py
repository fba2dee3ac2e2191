"""Access control of one server, put together from what an operator has set.

Touches  nothing by itself; the key file through the table.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from aerobee_access.admin import AccessHandlers, AskMaster, Changing, saved_after
from aerobee_access.audit import AuditLog
from aerobee_access.copies import AccessCopy, AccessGiver
from aerobee_access.freshness import Freshness, Signing
from aerobee_access.gate import AccessGate, AccessRules, administers
from aerobee_access.plain_files import PlainFiles
from aerobee_access.plain_gate import PlainGate
from aerobee_access.plain_import import import_accounts
from aerobee_access.port_guard import OperatorsGuard, TokenFile
from aerobee_access.refusals import AccessFigures, Refusals
from aerobee_access.sealing import Sealer
from aerobee_access.settings import AccessSettings, credentials_of, listed_codes, listed_names, user_of
from aerobee_access.shared_file import SharedAccessFile
from aerobee_access.table import AccessTable
from aerobee_access.users import UserType
from aerobee_remoting.ends.client import Signer
from aerobee_remoting.exchange.gate import Gate, Row
from aerobee_remoting.peers.peer import Peer
from aerobee_service.clock import epoch_ms
from aerobee_service.logs.event_log import event_logger
from aerobee_service.operators.http_responder import Visitor

__all__ = ["AccessControl"]

OFF: Final = "off"
PATH_CHARS_MAX: Final = 100  # of a request to the port for metrics, in a line of the audit log

log = event_logger("aerobee.access")


class AccessControl:
    """Users, policies, and the gate in front of them."""

    def __init__(
        self,
        config: AccessSettings,
        *,
        cluster_name: str,
        folder: Path,
        trusts: Callable[[Peer], bool] = lambda _: False,
        now_ms: Callable[[], int] = epoch_ms,
        keeps_log: bool = True,
        plain_acl: Path | None = None,
        imports: Path | None = None,
    ) -> None:
        """Beside `folder` are the key and the audit log unless the settings say otherwise; `trusts` is as for the
        gate. `plain_acl` is the file of accounts, where access control is that of RocketMQ 4.x; `imports` one whose
        accounts become users."""
        self._imports = imports
        self._now_ms = now_ms
        key_file = folder.with_name(f"{folder.name}.key")
        self._config = config
        self.table = AccessTable(Sealer(Path(config.access_key_path) if config.access_key_path else key_file))
        # Where users and policies are, when other servers may have them too.
        path = config.access_file_path
        self.file = SharedAccessFile(Path(path), self.table) if path and self.is_on else None
        rules = AccessRules(
            cluster_name=cluster_name,
            authentication=config.authentication_enabled,
            authorization=config.authorization_enabled,
            unsigned_codes=listed_codes(config.authentication_whitelist),
            free_codes=listed_codes(config.authorization_whitelist),
            as_official=config.auth_compat == "5.3.3",
        )
        self._audit: AuditLog | None = None
        if (self.is_on or plain_acl is not None) and keeps_log and config.access_audit_path != OFF:
            self._audit = AuditLog(
                Path(config.access_audit_path or folder.with_name(f"{folder.name}.audit.log")),
                size_max=config.access_audit_file_size,
                files_max=config.access_audit_files,
                now_ms=now_ms,
            )
        # The request by which slaves get users and policies.
        self.giver = AccessGiver(self.table, self.shared_secret, is_on=self.is_on)
        refusals = self._refusals = Refusals(time.monotonic)
        required = listed_names(config.auth_replay_required_users)
        freshness = (
            Freshness(
                now_ms,
                window_ms=config.auth_replay_window_millis,
                is_required_of=lambda user: config.auth_replay_protection == "required" or user in required,
            )
            if config.auth_replay_protection != OFF
            else None
        )
        self.plain = PlainFiles(plain_acl, now_ms=now_ms) if plain_acl is not None else None
        self.gate: Gate | None = None  # None: everybody may do everything
        if (plain := self.plain) is not None:
            self.gate = PlainGate(
                lambda: plain.acl, trusts=trusts, refusals=refusals, audit=self._audit, freshness=freshness
            )
        elif self.is_on:
            self.gate = AccessGate(
                self.table, rules, trusts=trusts, refusals=refusals, audit=self._audit, freshness=freshness
            )

    def close(self) -> None:
        """End the audit log: what it was given is written."""
        if self._audit is not None:
            self._audit.close()

    def figures(self) -> AccessFigures:
        """What was refused so far, for the metrics; all zero where everybody may do everything."""
        refusals, audit = self._refusals, self._audit
        return AccessFigures(
            dict(refusals.by_reason), refusals.delayed, audit.lost if audit is not None else 0
        )

    def port_guard(self, *, takes_certificates: bool) -> OperatorsGuard:
        """Who looks at the visitors of the port for metrics and health. Reads the file of the token: TokenUnusable."""
        path = self._config.metrics_prom_exporter_token_path
        return OperatorsGuard(
            TokenFile(Path(path)) if path else None,
            has_access_control=self.gate is not None,
            takes_certificates=takes_certificates,
            may_look=self._may_look,
            refused=self._refused_at_port,
        )

    def _may_look(self, host: str, subject: str) -> bool:
        """With access control it has to be a user that may see the server; those of 4.x are not in certificates."""
        return self.gate is None or (isinstance(self.gate, AccessGate) and self.gate.may_look(host, subject))

    def _refused_at_port(self, visitor: Visitor, path: str, reason: str) -> float:
        log.warning("metrics.refused", peer=visitor.peer, path=path, reason=reason)
        if self._audit is not None:
            self._audit.write(
                "refused",
                user="",
                peer=visitor.peer,
                code=0,
                request=f"GET {path}"[:PATH_CHARS_MAX],
                reason=reason,
            )
        return self._refusals.refused(visitor.host, "metrics")

    @property
    def is_on(self) -> bool:
        """Whether there are users and policies."""
        return self._config.authentication_enabled or self._config.authorization_enabled

    @property
    def signer(self) -> Signer | None:
        """Signs what this server asks others, with the credentials of its settings; None when it has none."""
        pair = credentials_of(self._config.inner_client_authentication_credentials)
        return Signing(*pair, now_ms=self._now_ms) if pair is not None else None

    @property
    def shared_secret(self) -> bytes | None:
        """What the servers of a cluster know and nobody else: the secret key of their credentials; None without any."""
        pair = credentials_of(self._config.inner_client_authentication_credentials)
        return None if pair is None else pair[1].encode()

    def bootstrap(self) -> bool:
        """Make the users of the settings that are not there yet; whether there were any. PlainAclDamaged when accounts
        are to be imported and cannot be read."""
        revision = self.table.revision
        for pair in (
            user_of(self._config.init_authentication_user),
            credentials_of(self._config.inner_client_authentication_credentials),
        ):
            if pair is not None and self.table.user(pair[0]) is None:
                self.table.create_user(*pair, UserType.SUPER)
        if self._imports is not None:
            self._import(self._imports)
        return self.table.revision != revision

    def _import(self, path: Path) -> None:
        files = PlainFiles(path, now_ms=self._now_ms)
        files.load()
        done = import_accounts(files.acl, self.table)
        if done.users:
            log.info("access.accounts_imported", path=str(path), users=len(done.users))
        for name in done.with_addresses:
            log.warning("access.white_address_lost", user=name)
        for name, reason in done.failed.items():
            log.error("access.account_not_imported", user=name, reason=reason)

    def check_white_lists(self, rows: Mapping[int, Row]) -> None:
        """Warn of requests of administrators that anybody may make, by the white lists of the settings. `rows` are
        those that the server knows."""
        config = self._config
        for key, text, is_on in (
            ("authenticationWhitelist", config.authentication_whitelist, config.authentication_enabled),
            ("authorizationWhitelist", config.authorization_whitelist, config.authorization_enabled),
        ):
            codes = sorted(code for code in listed_codes(text) if code in rows and administers(rows[code]))
            if is_on and codes:
                log.warning("access.administration_open", setting=key, codes=codes)

    def handlers(
        self, save: Callable[[], Awaitable[None]], ask_master: AskMaster | None = None
    ) -> AccessHandlers:
        """The requests that change users and policies; `save` returns when their own file has the change, `ask_master`
        is what a slave does instead."""
        return AccessHandlers(
            self.table,
            self._changing(save),
            is_on=self.is_on,
            is_shared=lambda: self.file is not None or self.giver.has_given,
            shows_secrets_to=self.shows_secrets_to,
            ask_master=ask_master,
            as_official=self._config.auth_compat == "5.3.3",
        )

    def _changing(self, save: Callable[[], Awaitable[None]]) -> Changing:
        return self.file.changing if self.file is not None else saved_after(save)

    def copy(self, save: Callable[[], Awaitable[None]]) -> AccessCopy | None:
        """What makes users and policies those of a master; None where there are none, or no credentials to ask with.
        `save` as for `handlers`."""
        secret = self.shared_secret
        return (
            AccessCopy(self.table, secret, self._changing(save))
            if self.is_on and secret is not None
            else None
        )

    def shows_secrets_to(self, name: str) -> bool:
        """Whether who names this AccessKey may see secrets: a super user whose signature was checked."""
        if self._config.auth_compat == "5.3.3":
            return True
        user = self.table.user(name)
        return self._config.authentication_enabled and user is not None and user.is_super
