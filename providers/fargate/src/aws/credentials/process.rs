//! Credentials of a program that the profile names.

use std::{process::Stdio, time::Duration};

use aws_credential_types::Credentials;
use sandbox_core::{Result, SandboxError};
use tokio::{io::AsyncReadExt, process::Command};

use super::Printed;

/// How long the program may take: it may ask its user.
const LIMIT: Duration = Duration::from_secs(60);
/// The most that it may print, in bytes.
const OUTPUT_MAX_BYTES: u64 = 64 * 1024;

/// Runs the program of a profile. Its command line is the user's own, taken apart by a shell as the AWS tools do.
pub(super) async fn run(command: &str) -> Result<Credentials> {
    let failed = |what: &str| SandboxError::unauthorized(format!("the profile's credential_process {what}"));
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed("cannot be started").with_source(error))?;
    let work = async {
        let mut text = Vec::new();
        if let Some(output) = child.stdout.take() {
            output.take(OUTPUT_MAX_BYTES).read_to_end(&mut text).await.map_err(|_| failed("could not be read"))?;
        }
        let status = child.wait().await.map_err(|_| failed("could not be waited for"))?;
        match status.success() {
            true => Ok(text),
            false => Err(failed(&format!("failed ({status})"))),
        }
    };
    let text = tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| Err(failed("did not end in time")))?;
    Printed::read(&text, "credential process")
}

#[cfg(test)]
mod tests {
    use super::run;

    #[tokio::test]
    async fn a_program_that_fails_or_prints_something_else_is_told() {
        let error = run("exit 3").await.unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert!(run("echo hello").await.unwrap_err().to_string().contains("no credentials"));
        let found = run(r#"printf '{"AccessKeyId":"A","SecretAccessKey":"s"}'"#).await.unwrap();
        assert_eq!(found.access_key_id(), "A");
    }
}
