//! Checks that several types share.

use std::{net::IpAddr, time::Duration};

use crate::{ByteString, Result, SandboxError};

/// The longest single argument or `NAME=VALUE` string that Linux takes, in bytes, without the final NUL.
///
/// Source: `MAX_ARG_STRLEN` (32 pages of 4 KiB) of the Linux kernel.
pub const MAX_ARGUMENT_BYTES: usize = 131_071;

/// All arguments and environment strings together, in bytes: a quarter of the usual 8 MiB stack, less the room that
/// the kernel takes for itself.
pub const MAX_ARGUMENTS_TOTAL_BYTES: usize = 2 * 1024 * 1024 - 4096;

/// The longest duration that is taken anywhere: ten years, in seconds.
const MAX_SECONDS: f64 = 315_360_000.0;

/// Whether the host of a URL is this machine, by name or by address, and so never behind a proxy of the environment's.
///
/// Forms that a URL library makes plain before (`127.1`) are not known here.
pub fn is_loopback_host(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Checks a duration in seconds: finite, above zero and at most ten years.
pub(crate) fn check_seconds(field: &str, value: Option<f64>) -> Result<()> {
    match value {
        Some(seconds) if !(seconds > 0.0 && seconds <= MAX_SECONDS) => Err(SandboxError::invalid_input(
            field,
            format!("must be above 0 and at most {MAX_SECONDS} seconds, not {seconds}"),
        )),
        _ => Ok(()),
    }
}

/// A checked number of seconds as a duration. Values that `check_seconds` refuses read as none.
pub(crate) fn to_duration(seconds: Option<f64>) -> Option<Duration> {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// Refuses a NUL byte, which no program argument, path or variable can hold.
pub(crate) fn check_no_nul(field: &str, bytes: &[u8]) -> Result<()> {
    if bytes.contains(&0) {
        return Err(SandboxError::invalid_input(field, "must not contain a NUL byte"));
    }
    Ok(())
}

/// Checks an absolute path inside a sandbox.
pub(crate) fn check_path(field: &str, path: &ByteString) -> Result<()> {
    if path.is_empty() {
        return Err(SandboxError::invalid_input(field, "must not be empty"));
    }
    check_no_nul(field, path.as_bytes())
}

/// Checks the name of an environment variable.
pub(crate) fn check_env_name(field: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(SandboxError::invalid_input(
            format!("{field}.{}", name.replace('\0', "\\0")),
            "a variable name must not be empty and must not contain '=' or a NUL byte",
        ));
    }
    Ok(())
}

/// Checks a user: `name`, `uid`, `uid:gid` or `name:group`.
pub(crate) fn check_user(field: &str, user: Option<&str>) -> Result<()> {
    let Some(user) = user else { return Ok(()) };
    let parts: Vec<&str> = user.split(':').collect();
    let valid = parts.len() <= 2 && parts.iter().all(|part| !part.is_empty() && !part.contains(['\0', '\n', '/', ' ']));
    if !valid {
        return Err(SandboxError::invalid_input(field, "must be NAME, UID, UID:GID or NAME:GROUP"));
    }
    Ok(())
}

/// The candidate that `name` was most likely meant to be, if one is near.
pub fn near_match<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::{check_env_name, check_seconds, check_user, is_loopback_host, near_match};

    #[test]
    fn seconds_are_finite_positive_and_bounded() {
        for good in [None, Some(0.001), Some(1.5), Some(86_400.0)] {
            assert!(check_seconds("t", good).is_ok(), "{good:?}");
        }
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e18] {
            assert!(check_seconds("t", Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn users_and_variable_names_follow_their_forms() {
        for good in ["root", "0", "1000:1000", "app:staff", "a.b-c_d"] {
            assert!(check_user("user", Some(good)).is_ok(), "{good}");
        }
        for bad in ["", ":", "a:", ":1", "a:b:c", "a b", "a\nb"] {
            assert!(check_user("user", Some(bad)).is_err(), "{bad:?}");
        }
        assert!(check_env_name("env", "A.b-c").is_ok());
        for bad in ["", "A=B", "A\0"] {
            assert!(check_env_name("env", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn this_machine_is_known_by_its_names_and_addresses() {
        for host in
            ["localhost", "LocalHost.", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]", "::1", "[::ffff:127.0.0.1]"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["", "example.org", "localhost.example.org", "10.0.0.1", "0.0.0.0", "[2001:db8::1]"] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn near_matches_are_near() {
        assert_eq!(near_match("memory_mb", ["cpu", "memory_mib", "disk_gib"]), Some("memory_mib"));
        assert_eq!(near_match("zzz", ["cpu", "memory_mib"]), None);
    }
}
