//! What the containers of the sidecar's image run.

use crate::{
    aws::Bucket,
    definition::{AGENT_FILE, SHA256_VARIABLE, SSH_VARIABLE, URL_VARIABLE},
    staging::RELAY_SOCKET,
};

/// What ends a script that could not bring the agent: the image has no program for it, …
pub(crate) const NO_PROGRAM: i64 = 193;
/// … it does not come, …
pub(crate) const NOT_FETCHED: i64 = 194;
/// … something else came, …
pub(crate) const NOT_THE_SAME: i64 = 195;
/// … or it cannot be put anywhere.
pub(crate) const NOT_WRITTEN: i64 = 196;

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

/// Lets an image fetch the agent, and become it with the arguments behind the script. What it was told is gone then.
pub(crate) fn bootstrap_script() -> String {
    format!(
        "fail() {{ echo \"sandbox: $2\" >&2; exit \"$1\"; }}
new={AGENT_FILE}.new
if command -v curl >/dev/null 2>&1; then
  curl -fsS --retry 3 --connect-timeout 10 -o $new \"${URL_VARIABLE}\" || fail {NOT_FETCHED} 'the agent does not come'
elif command -v wget >/dev/null 2>&1; then
  wget -q -O $new \"${URL_VARIABLE}\" || fail {NOT_FETCHED} 'the agent does not come'
else
  fail {NO_PROGRAM} 'there is neither curl nor wget'
fi
if command -v sha256sum >/dev/null 2>&1; then
  echo \"${SHA256_VARIABLE}  $new\" | sha256sum -c - >/dev/null 2>&1 || fail {NOT_THE_SAME} 'what came is not the agent'
fi
chmod 0755 $new && mv $new {AGENT_FILE} || fail {NOT_WRITTEN} 'the agent cannot be written'
unset {URL_VARIABLE} {SHA256_VARIABLE} new
exec {AGENT_FILE} \"$@\"
"
    )
}
