//! What the containers of the sidecar's image run.

use crate::{aws::Bucket, definition::SSH_VARIABLE, staging::RELAY_SOCKET};

/// The SSH server lets in one key: no shell, nothing listens for it, and it connects to what is in the task. Sockets alone
/// cannot be allowed: without TCP the server refuses them, too.
pub(crate) fn ssh_script(port: u16) -> String {
    let folder = "/run/sandbox";
    format!(
        "set -eu
umask 077
mkdir -p {folder} /run/sshd /var/empty
printf '%s\\n' \"restrict,port-forwarding ${SSH_VARIABLE}\" > {folder}/authorized_keys
ssh-keygen -q -t ed25519 -N '' -f {folder}/host_key
cat > {folder}/sshd_config <<'END'
Port {port}
ListenAddress 0.0.0.0
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
AllowUsers root
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding local
AllowStreamLocalForwarding local
AllowAgentForwarding no
X11Forwarding no
PermitTunnel no
PermitTTY no
UseDNS no
PidFile none
LogLevel ERROR
LoginGraceTime 30
MaxStartups 64:30:128
ClientAliveInterval 30
ClientAliveCountMax 4
END
exec \"$(command -v sshd || echo /usr/sbin/sshd)\" -D -e -f {folder}/sshd_config
"
    )
}

/// Carries what comes to a socket in the shared volume to the bucket, and only there. A certificate that is not that of the
/// bucket's host ends a connection.
pub(crate) fn relay_script(bucket: &Bucket) -> String {
    let (address, host) = (bucket.address(), bucket.host());
    let far = match bucket.is_https() {
        true => format!(
            "OPENSSL:{address},verify=1,cafile=/etc/ssl/certs/ca-certificates.crt,commonname={host},snihost={host},nodelay"
        ),
        false => format!("TCP:{address},nodelay"),
    };
    format!("exec socat -b 131072 UNIX-LISTEN:{RELAY_SOCKET},fork,unlink-early,mode=0600,backlog=64 {far}\n")
}
