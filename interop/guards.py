"""What makes Apache's servers pick their clients: accounts with keys (ACL), and TLS alone."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAKE_KEY = "openssl req -x509 -newkey rsa:2048 -nodes -days 2"


@dataclass(frozen=True, slots=True)
class Account:
    """A user with a secret: an administrator, or one that may only use the topics and groups named for it."""

    access_key: str
    secret_key: str
    is_admin: bool = False
    topics: Sequence[str] = ()
    groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's key and its certificate, which is signed by itself: to trust it is to trust this file."""

    key: Path
    certificate: Path

    @classmethod
    def made(cls, folder: Path, name: str, address: str = "127.0.0.1") -> Certificate:
        made = cls(folder / f"{name}.key", folder / f"{name}.crt")
        subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{address}"]
        files = ["-keyout", str(made.key), "-out", str(made.certificate)]
        subprocess.run([*MAKE_KEY.split(), *subject, *files], check=True, capture_output=True)
        return made


@dataclass(frozen=True, slots=True)
class Guard:
    """Accounts, of which the first administers and is the broker itself, and a certificate; either may be missing."""

    accounts: Sequence[Account] = ()
    certificate: Certificate | None = None

    def broker_config(self, version: str) -> dict[str, object]:
        """What the broker's own file says of them: 4.x reads plain_acl.yml beside it, 5.x is told of one user."""
        if not self.accounts:
            return {}
        if version.startswith("4."):
            return {"aclEnable": "true"}
        first = self.accounts[0]
        who, what = (f"org.apache.rocketmq.auth.{part}.provider" for part in ("authentication", "authorization"))
        return {
            "authenticationEnabled": "true",
            "authenticationProvider": f"{who}.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": f"{who}.LocalAuthenticationMetadataProvider",
            "initAuthenticationUser": json.dumps({"username": first.access_key, "password": first.secret_key}),
            "innerClientAuthenticationCredentials": json.dumps(
                {"accessKey": first.access_key, "secretKey": first.secret_key}
            ),
            "authorizationEnabled": "true",
            "authorizationProvider": f"{what}.DefaultAuthorizationProvider",
            "authorizationMetadataProvider": f"{what}.LocalAuthorizationMetadataProvider",
        }

    def written_to(self, conf: Path) -> dict[str, str]:
        """Write what Apache's servers read beside their own file; the Java properties that lead them to it."""
        if self.accounts:
            (conf / "plain_acl.yml").write_text("accounts:\n" + "".join(map(_plain_account, self.accounts)))
            first = self.accounts[0]
            (conf / "tools.yml").write_text(f"accessKey: {first.access_key}\nsecretKey: {first.secret_key}\n")
        if self.certificate is None:
            return {}
        file = conf / "tls.properties"
        file.write_text(
            f"tls.test.mode.enable=false\n"
            f"tls.server.keyPath={self.certificate.key}\n"
            f"tls.server.certPath={self.certificate.certificate}\n"
            f"tls.server.authClient=false\n"
            f"tls.client.authServer=true\n"
            f"tls.client.trustCertPath={self.certificate.certificate}\n"
        )
        # The broker is a client of the name server, and speaks TLS with it as well.
        return {"tls.server.mode": "enforcing", "tls.enable": "true", "tls.config.file": str(file)}

    def our_config(self, home: Path) -> dict[str, object]:
        """Return what the file of our broker says of them; accounts are in Apache's file, below `home`."""
        config = self.our_tls()
        if self.accounts:
            file = home / "conf" / "plain_acl.yml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("accounts:\n" + "".join(map(_plain_account, self.accounts)))
            file.chmod(0o600)
            first = self.accounts[0]
            keys = json.dumps({"accessKey": first.access_key, "secretKey": first.secret_key})
            config |= {"aclEnable": "true", "rocketmqHome": home, "innerClientAuthenticationCredentials": keys}
        return config

    def our_tls(self) -> dict[str, object]:
        """Return what the file of our name server says, too."""
        if self.certificate is None:
            return {}
        return {
            "tls.server.mode": "enforcing",
            "tls.server.keyPath": self.certificate.key,
            "tls.server.certPath": self.certificate.certificate,
            "tls.enable": "true",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": self.certificate.certificate,
        }

    def tls(self) -> ssl.SSLContext | None:
        """What a client needs to trust these servers."""
        if self.certificate is None:
            return None
        return ssl.create_default_context(cafile=str(self.certificate.certificate))


def _plain_account(account: Account) -> str:
    lines = [
        f"accessKey: {account.access_key}",
        f"secretKey: {account.secret_key}",
        "whiteRemoteAddress:",
        f"admin: {str(account.is_admin).lower()}",
        "defaultTopicPerm: DENY",
        "defaultGroupPerm: DENY",
        "topicPerms:",
        *(f"- {topic}=PUB|SUB" for topic in account.topics),
        "groupPerms:",
        *(f"- {group}=SUB" for group in account.groups),
    ]
    return "- " + "\n  ".join(lines) + "\n"
