//! The token service: credentials of a role, for those of somebody else or for a token.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use reqwest::Url;
use sandbox_core::{Result, SandboxError};

use super::Printed;
use crate::aws::{Http, body, failure::Failure, region::Service, sign::Unsigned, xml};

const LIMIT: Duration = Duration::from_secs(20);
const ANSWER_MAX_BYTES: usize = 64 * 1024;
/// What a session is called where nobody says.
pub(super) const SESSION: &str = "sandbox";

/// Where it is.
pub(super) struct Sts<'a> {
    pub(super) http: &'a Http,
    pub(super) url: &'a str,
    pub(super) region: &'a str,
}

/// A role, and how it is assumed.
#[derive(Default)]
pub(super) struct Role<'a> {
    pub(super) arn: &'a str,
    pub(super) session: Option<&'a str>,
    pub(super) external_id: Option<&'a str>,
    /// In seconds.
    pub(super) duration: Option<&'a str>,
}

impl Sts<'_> {
    /// Credentials of a role, for those of somebody who may assume it.
    ///
    /// # Errors
    /// What the service refuses with.
    pub(super) async fn assume(&self, role: &Role<'_>, source: &Credentials) -> Result<Credentials> {
        let form = role.form("AssumeRole", &[("ExternalId", role.external_id)]);
        self.ask("AssumeRole", &form, Some(source), "role").await
    }

    /// Credentials of a role, for a token that somebody else made.
    ///
    /// # Errors
    /// What the service refuses with.
    pub(super) async fn with_token(&self, role: &Role<'_>, token: &str) -> Result<Credentials> {
        let form = role.form("AssumeRoleWithWebIdentity", &[("WebIdentityToken", Some(token))]);
        self.ask("AssumeRoleWithWebIdentity", &form, None, "web identity").await
    }

    async fn ask(
        &self,
        action: &str,
        form: &str,
        signed: Option<&Credentials>,
        source: &'static str,
    ) -> Result<Credentials> {
        let failed = |what: &str| SandboxError::unauthorized(format!("{action}: {what}"));
        let url = format!("{}/", self.url);
        let headers = [("content-type", "application/x-www-form-urlencoded".to_owned())];
        let mut request = self.http.to(&url).post(&url).body(form.to_owned());
        for (name, value) in &headers {
            request = request.header(*name, value);
        }
        if let Some(credentials) = signed {
            let unsigned = Unsigned::post(Service::Sts, self.region, &url, &headers, form.as_bytes());
            for (name, value) in unsigned.sign(credentials, SystemTime::now())? {
                request = request.header(name, value);
            }
        }
        let work = async {
            let answer = request.send().await.map_err(|_| failed("nobody answers"))?;
            let status = answer.status().as_u16();
            let text = body(answer, ANSWER_MAX_BYTES).await.map_err(|_| failed("it was answered in part only"))?;
            match status {
                200 => Ok(text),
                status => Err(Failure::read(action, status, None, &text).into_error()),
            }
        };
        let text = tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| Err(failed("no answer in time")))?;
        let text = String::from_utf8_lossy(&text);
        let part = |name: &str| xml::text(&text, name).map(str::to_owned);
        let (Some(id), Some(secret)) = (part("AccessKeyId"), part("SecretAccessKey")) else {
            return Err(failed("it was answered with something else"));
        };
        let printed = Printed {
            access_key_id: id,
            secret_access_key: secret,
            session_token: part("SessionToken"),
            expiration: part("Expiration"),
        };
        printed.into_credentials(source)
    }
}

impl Role<'_> {
    fn form(&self, action: &str, more: &[(&str, Option<&str>)]) -> String {
        // Only to have the form written.
        let Ok(mut form) = Url::parse("http://form") else { return String::new() };
        form.query_pairs_mut()
            .append_pair("Action", action)
            .append_pair("Version", "2011-06-15")
            .append_pair("RoleArn", self.arn)
            .append_pair("RoleSessionName", self.session.unwrap_or(SESSION));
        let more = more.iter().copied().chain([("DurationSeconds", self.duration)]);
        for (name, value) in more.filter_map(|(name, value)| Some((name, value?))) {
            form.query_pairs_mut().append_pair(name, value);
        }
        form.query().unwrap_or_default().to_owned()
    }
}
