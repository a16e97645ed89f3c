//! Programs that keep credentials for docker's own client: `docker-credential-NAME`, found in `PATH`.

use std::{collections::BTreeMap, process::Stdio, time::Duration};

use sandbox_core::{Result, SandboxError, Secret};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
};

use crate::config::RegistryAuth;

/// How long one may take: it may ask its user, or a service far away.
const LIMIT: Duration = Duration::from_secs(30);

/// The most that one may print, in bytes.
const OUTPUT_MAX_BYTES: u64 = 1 << 20;

/// The name of a user that has a token in place of a password.
const OF_TOKEN: &str = "<token>";

/// What one prints when it has nothing. It fails then, too.
const NOTHING: &str = "credentials not found";

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Username", default)]
    username: String,
    #[serde(rename = "Secret", default)]
    secret: Secret,
}

/// What a program has for an address.
///
/// # Errors
/// `Unauthorized`, naming the program, when it cannot be run or does not answer.
pub(crate) async fn get(helper: &str, address: &str) -> Result<Option<RegistryAuth>> {
    let Some(Answer { username, secret }) = ask(helper, "get", address).await? else { return Ok(None) };
    if secret.expose().is_empty() {
        return Ok(None);
    }
    Ok(Some(match username == OF_TOKEN {
        true => RegistryAuth { identity_token: Some(secret), ..RegistryAuth::default() },
        false => RegistryAuth { username: Some(username), password: Some(secret), identity_token: None },
    }))
}

/// The addresses for which a program has something.
///
/// # Errors
/// As [`get`].
pub(crate) async fn list(helper: &str) -> Result<Vec<String>> {
    let all: Option<BTreeMap<String, String>> = ask(helper, "list", "").await?;
    Ok(all.unwrap_or_default().into_keys().collect())
}

async fn ask<T: DeserializeOwned>(helper: &str, verb: &str, address: &str) -> Result<Option<T>> {
    // Nothing that it says is told: it may be what is kept.
    let failed = |what: &str| {
        SandboxError::unauthorized(format!("the credential helper {helper:?} of the docker config {what}"))
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if helper.is_empty() || !helper.chars().all(is_plain) {
        return Err(failed("has a name that is none"));
    }
    let mut child = Command::new(format!("docker-credential-{helper}"))
        .arg(verb)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed("cannot be started").with_source(error))?;
    let work = async {
        if let Some(mut input) = child.stdin.take() {
            // One that reads nothing has its answer all the same.
            let _ = input.write_all(address.as_bytes()).await;
        }
        let mut text = Vec::new();
        if let Some(output) = child.stdout.take() {
            output.take(OUTPUT_MAX_BYTES).read_to_end(&mut text).await.map_err(|_| failed("could not be read"))?;
        }
        let status = child.wait().await.map_err(|_| failed("could not be waited for"))?;
        match status.success() {
            true => serde_json::from_slice(&text).map(Some).map_err(|_| failed("answers something else")),
            false if String::from_utf8_lossy(&text).contains(NOTHING) => Ok(None),
            false => Err(failed(&format!("failed ({status})"))),
        }
    };
    tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| Err(failed("did not answer in time")))
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;

    use super::{get, list};

    #[tokio::test]
    async fn a_helper_that_is_none_is_named_and_no_path_is_one() {
        for name in ["", "../../bin/sh", "a b", "no-such-helper"] {
            let error = get(name, "r.example").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
            assert!(list(name).await.is_err());
        }
    }
}
