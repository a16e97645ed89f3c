//! Credentials for a token that somebody else made: pods of a cluster, jobs of a CI.

use std::time::Duration;

use aws_credential_types::Credentials;
use reqwest::{Client, Url};
use sandbox_core::{Result, SandboxError};

use super::Printed;
use crate::aws::{body, environment::Environment, failure::Failure, xml};

const LIMIT: Duration = Duration::from_secs(20);
const ANSWER_MAX_BYTES: usize = 64 * 1024;

/// Changes the token of the environment into credentials; none where the environment names no token.
pub(super) async fn find(http: &Client, environment: &Environment, sts: &str) -> Result<Option<Credentials>> {
    let (Some(path), Some(role)) = (environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"), environment.get("AWS_ROLE_ARN"))
    else {
        return Ok(None);
    };
    let failed = |what: &str| SandboxError::unauthorized(format!("the web identity {what}"));
    // Read each time: it is exchanged while this program runs.
    let token = tokio::fs::read_to_string(path).await.map_err(|_| failed("has a token file that cannot be read"))?;
    let session = environment.get("AWS_ROLE_SESSION_NAME").unwrap_or("sandbox");
    // Only to have the form written.
    let mut form = Url::parse("http://form").map_err(|_| failed("could not be written"))?;
    form.query_pairs_mut()
        .append_pair("Action", "AssumeRoleWithWebIdentity")
        .append_pair("Version", "2011-06-15")
        .append_pair("RoleArn", role)
        .append_pair("RoleSessionName", session)
        .append_pair("WebIdentityToken", token.trim());
    let request = http
        .post(sts)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(form.query().unwrap_or_default().to_owned());
    let work = async {
        let answer = request.send().await.map_err(|_| failed("could not be shown: nobody answers"))?;
        let status = answer.status().as_u16();
        let text = body(answer, ANSWER_MAX_BYTES).await.map_err(|_| failed("was answered in part only"))?;
        match status {
            200 => Ok(text),
            status => Err(Failure::read("AssumeRoleWithWebIdentity", status, None, &text).into_error()),
        }
    };
    let text = tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| Err(failed("was not answered in time")))?;
    let text = String::from_utf8_lossy(&text);
    let part = |name: &str| xml::text(&text, name).map(str::to_owned);
    let (Some(id), Some(secret)) = (part("AccessKeyId"), part("SecretAccessKey")) else {
        return Err(failed("was answered with something else"));
    };
    let printed = Printed {
        access_key_id: id,
        secret_access_key: secret,
        session_token: part("SessionToken"),
        expiration: part("Expiration"),
    };
    printed.into_credentials("web identity").map(Some)
}

#[cfg(test)]
mod tests {
    use super::find;
    use crate::aws::{environment::Environment, http_client, testing::Stub};

    #[tokio::test]
    async fn a_token_is_changed_into_credentials_and_is_never_in_an_error() {
        let stub = Stub::start(|request| match request.body.contains("WebIdentityToken=the%26token") {
            true => (
                200,
                "<R><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
                 <SessionToken>t</SessionToken><Expiration>2126-01-02T03:04:05Z</Expiration></Credentials></R>"
                    .into(),
            ),
            false => (403, "<E><Code>AccessDenied</Code><Message>no</Message></E>".into()),
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let environment =
            Environment::of(&[("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()), ("AWS_ROLE_ARN", "arn:x")]);
        let http = http_client().unwrap();
        std::fs::write(&file, "the&token\n").unwrap();
        let found = find(&http, &environment, &stub.url()).await.unwrap().unwrap();
        assert_eq!((found.access_key_id(), found.session_token()), ("A", Some("t")));
        std::fs::write(&file, "canary").unwrap();
        let error = find(&http, &environment, &stub.url()).await.unwrap_err();
        assert!(error.to_string().contains("AccessDenied") && !error.to_string().contains("canary"), "{error}");
        assert!(find(&http, &Environment::default(), "http://127.0.0.1:9").await.unwrap().is_none());
    }
}
