//! Credentials for a token that somebody else made: pods of a cluster, jobs of a CI.

use aws_credential_types::Credentials;
use sandbox_core::{Result, SandboxError};

use super::sts::{Role, Sts};
use crate::aws::environment::Environment;

/// Changes the token of the environment into credentials; none where the environment names no token.
pub(super) async fn find(sts: &Sts<'_>, environment: &Environment) -> Result<Option<Credentials>> {
    let (Some(path), Some(arn)) = (environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"), environment.get("AWS_ROLE_ARN"))
    else {
        return Ok(None);
    };
    let role = Role { arn, session: environment.get("AWS_ROLE_SESSION_NAME"), ..Role::default() };
    exchange(sts, &role, path).await.map(Some)
}

/// Changes the token in a file into credentials of a role.
pub(super) async fn exchange(sts: &Sts<'_>, role: &Role<'_>, path: &str) -> Result<Credentials> {
    // Read each time: it is exchanged while this program runs.
    let token = tokio::fs::read_to_string(path).await;
    let token =
        token.map_err(|_| SandboxError::unauthorized("the web identity has a token file that cannot be read"))?;
    sts.with_token(role, token.trim()).await
}

#[cfg(test)]
mod tests {
    use super::find;
    use crate::aws::{Http, credentials::sts::Sts, environment::Environment, testing::Stub};

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
        let (http, url) = (Http::new().unwrap(), stub.url());
        let sts = Sts { http: &http, url: &url, region: "r" };
        std::fs::write(&file, "the&token\n").unwrap();
        let found = find(&sts, &environment).await.unwrap().unwrap();
        assert_eq!((found.access_key_id(), found.session_token()), ("A", Some("t")));
        std::fs::write(&file, "canary").unwrap();
        let error = find(&sts, &environment).await.unwrap_err();
        assert!(error.to_string().contains("AccessDenied") && !error.to_string().contains("canary"), "{error}");
        assert!(stub.asked().iter().all(|asked| asked.header("authorization").is_none()), "the token alone is shown");
        let nobody = Sts { url: "http://127.0.0.1:9", ..sts };
        assert!(find(&nobody, &Environment::default()).await.unwrap().is_none());
    }
}
