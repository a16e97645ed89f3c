//! Credentials for somebody who has signed on in a browser: `aws sso login` leaves a token, which is shown to the portal, and
//! exchanged for a new one before it is old.
//!
//! Three calls of two services, so that the SDK's own crates, which cost twice the build of everything here, are not needed.

use std::{
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use aws_credential_types::Credentials;
use aws_smithy_types::{DateTime, date_time::Format};
use reqwest::Url;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use sandbox_core::{Result, SandboxError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Chain;
use crate::{
    aws::{
        body,
        failure::Failure,
        profile::Profile,
        region::{Service, endpoint, is_region},
    },
    key::hex,
};

const LIMIT: Duration = Duration::from_secs(20);
const ANSWER_MAX_BYTES: usize = 64 * 1024;
/// A token is exchanged so long before its end.
const EARLY: Duration = Duration::from_secs(600);

/// What a profile says of the sign-on.
struct SignOn<'a> {
    region: String,
    /// What the token's file is called after.
    cache_key: String,
    account: &'a str,
    role: &'a str,
}

impl<'a> SignOn<'a> {
    fn of(profile: &'a Profile) -> Result<Option<Self>> {
        let missing = |key: &str| {
            let text = format!("profile {:?} signs on, but has no {key}", profile.name);
            SandboxError::unauthorized(text).with_field("profile")
        };
        let (region, cache_key) = match (profile.get("sso_session"), profile.get("sso_start_url")) {
            (Some(name), _) => {
                let session = profile.sso_session(name);
                let region = session.get("sso_region").map(str::to_owned);
                (region.ok_or_else(|| missing(&format!("sso_region in [sso-session {name}]")))?, name.to_owned())
            }
            (None, Some(url)) => {
                let region = profile.get("sso_region").ok_or_else(|| missing("sso_region"))?;
                (region.to_owned(), url.to_owned())
            }
            (None, None) => return Ok(None),
        };
        if !is_region(&region) {
            return Err(missing("sso_region that is one"));
        }
        let account = profile.get("sso_account_id").ok_or_else(|| missing("sso_account_id"))?;
        let role = profile.get("sso_role_name").ok_or_else(|| missing("sso_role_name"))?;
        Ok(Some(Self { region, cache_key, account, role }))
    }
}

/// The token that signing on has left. What this does not know of its file is kept.
struct Token {
    path: PathBuf,
    all: Map<String, Value>,
}

impl Token {
    fn read(path: PathBuf) -> Option<Self> {
        let text = std::fs::read(&path).ok()?;
        let all = serde_json::from_slice(&text).ok()?;
        Some(Self { path, all })
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.all.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    fn holds(&self, key: &str, at_least: Duration) -> bool {
        let end = self.text(key).and_then(|text| DateTime::from_str(text, Format::DateTimeWithOffset).ok());
        let end = end.and_then(|end| SystemTime::try_from(end).ok());
        end.is_some_and(|end| end > SystemTime::now() + at_least)
    }
}

/// In one step, and readable by nobody else: whoever has it is signed on.
fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let draft = path.with_extension(format!("json.{}", std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| file.write_all(text))
        .and_then(|()| std::fs::rename(&draft, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exchanged {
    access_token: String,
    expires_in: u64,
    #[serde(default)]
    refresh_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answered {
    role_credentials: RoleCredentials,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleCredentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    /// In milliseconds since the Unix epoch.
    expiration: u64,
}

impl Chain {
    /// Credentials of whoever has signed on; none where the profile does not sign on.
    pub(super) async fn of_sso(&self, profile: &Profile) -> Result<Option<Credentials>> {
        let Some(on) = SignOn::of(profile)? else { return Ok(None) };
        let log_in = |what: &str| {
            SandboxError::unauthorized(format!("profile {:?}: {what}", profile.name))
                .with_field("profile")
                .with_help(format!("aws sso login --profile {}", profile.name))
        };
        let home =
            self.environment.get("HOME").ok_or_else(|| log_in("there is no HOME with the token of a sign-on"))?;
        let folder = Path::new(home).join(".aws/sso/cache");
        let name = hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, on.cache_key.as_bytes()).as_ref());
        let path = folder.join(format!("{name}.json"));
        let mut token = Token::read(path).ok_or_else(|| log_in("nobody has signed on"))?;
        if !token.holds("expiresAt", EARLY) {
            let exchanged = self.exchange(&on, &mut token).await;
            // One that still holds is good enough.
            if !token.holds("expiresAt", Duration::ZERO) {
                exchanged?;
                return Err(log_in("the sign-on has expired"));
            }
        }
        let shown = token.text("accessToken").ok_or_else(|| log_in("nobody has signed on"))?;
        let base = endpoint(Service::Sso, &on.region, &self.config, &self.environment);
        let mut url = Url::parse(&format!("{base}/federation/credentials"))
            .map_err(|_| SandboxError::invalid_input("endpoints.sso", "is no URL"))?;
        url.query_pairs_mut().append_pair("role_name", on.role).append_pair("account_id", on.account);
        let request = self.http.to(url.as_str()).get(url).header("x-amz-sso_bearer_token", shown);
        let text = ask("GetRoleCredentials", request).await.map_err(|failure| match failure.status {
            401 => log_in("the sign-on has expired"),
            _ => failure.into_error(),
        })?;
        let answered: Answered = serde_json::from_slice(&text)
            // The text of the error may quote what was answered.
            .map_err(|_| SandboxError::unauthorized("GetRoleCredentials: the answer is no credentials"))?;
        let found = answered.role_credentials;
        let end = SystemTime::UNIX_EPOCH + Duration::from_millis(found.expiration);
        Ok(Some(Credentials::new(
            found.access_key_id,
            found.secret_access_key,
            Some(found.session_token),
            Some(end),
            "sign-on",
        )))
    }

    /// Exchanges the token for a new one, where it was made so that it can be.
    async fn exchange(&self, on: &SignOn<'_>, token: &mut Token) -> Result<()> {
        let can_be = token.holds("registrationExpiresAt", Duration::ZERO);
        let (Some(id), Some(secret), Some(refresh), true) =
            (token.text("clientId"), token.text("clientSecret"), token.text("refreshToken"), can_be)
        else {
            return Ok(());
        };
        let input =
            json!({ "clientId": id, "clientSecret": secret, "grantType": "refresh_token", "refreshToken": refresh });
        let url = format!("{}/token", endpoint(Service::SsoOidc, &on.region, &self.config, &self.environment));
        let request = self.http.to(&url).post(&url).header("content-type", "application/json").body(input.to_string());
        let text = match ask("CreateToken", request).await {
            Ok(text) => text,
            // It is not to be had any more: signing on again is what helps.
            Err(failure) if failure.status == 400 || failure.status == 401 => return Ok(()),
            Err(failure) => return Err(failure.into_error()),
        };
        let exchanged: Exchanged = serde_json::from_slice(&text)
            .map_err(|_| SandboxError::unauthorized("CreateToken: the answer is no token"))?;
        let end = DateTime::from(SystemTime::now() + Duration::from_secs(exchanged.expires_in.min(1 << 30)));
        let end = DateTime::from_secs(end.secs()).fmt(Format::DateTime);
        let end = end.map_err(|_| SandboxError::internal("the end of a token could not be written"))?;
        token.all.insert("accessToken".to_owned(), exchanged.access_token.into());
        token.all.insert("expiresAt".to_owned(), end.into());
        if let Some(refresh) = exchanged.refresh_token {
            token.all.insert("refreshToken".to_owned(), refresh.into());
        }
        let text = serde_json::to_vec(&token.all).unwrap_or_default();
        // Where it cannot be kept the next process exchanges it anew.
        let _ = write(&token.path, &text);
        Ok(())
    }
}

async fn ask(action: &str, request: reqwest::RequestBuilder) -> Result<Vec<u8>, Failure> {
    let unanswered = |what: &str| Failure::unanswered(action, what);
    let work = async {
        let answer = request.send().await.map_err(|_| unanswered("nobody answers"))?;
        let status = answer.status().as_u16();
        let text = body(answer, ANSWER_MAX_BYTES).await.map_err(|_| unanswered("it was answered in part only"))?;
        match status {
            200 => Ok(text),
            status => Err(Failure::read(action, status, None, &text)),
        }
    };
    tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| Err(unanswered("no answer in time")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sandbox_core::ErrorKind;
    use serde_json::{Value, json};

    use crate::{
        aws::{
            Http,
            credentials::Chain,
            environment::Environment,
            profile::Profile,
            testing::{Asked, Stub},
        },
        config::FargateConfig,
    };

    const PROFILE: &str = "[default]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = Boxes\n\
                           [sso-session corp]\nsso_region = eu-west-1\nsso_start_url = https://corp.example/start\n";

    fn chain(stub: &Stub, folder: &Path, profile: &str) -> Chain {
        let environment = Environment::of(&[("AWS_EC2_METADATA_DISABLED", "true"), ("HOME", folder.to_str().unwrap())]);
        let config = FargateConfig { endpoint_url: Some(stub.url()), ..FargateConfig::default() };
        let profile = Profile::parse(profile, "", "default");
        Chain::new(&config, environment, profile, Http::new().unwrap(), "eu-central-1")
    }

    fn answer(asked: &Asked) -> (u16, String) {
        match (asked.method.as_str(), asked.path.split('?').next().unwrap()) {
            ("POST", "/token") if asked.body.contains(r#""refreshToken":"renew""#) => {
                (200, json!({"accessToken": "new", "expiresIn": 3600, "refreshToken": "renew2"}).to_string())
            }
            ("GET", "/federation/credentials") => match asked.header("x-amz-sso_bearer_token") {
                Some("good" | "new") => {
                    let found = json!({
                        "accessKeyId": "A", "secretAccessKey": "s", "sessionToken": "t", "expiration": 4_922_000_000_000_u64,
                    });
                    (200, json!({ "roleCredentials": found }).to_string())
                }
                _ => (401, r#"{"__type":"UnauthorizedException","message":"Session token not found"}"#.into()),
            },
            _ => (400, r#"{"error":"invalid_grant"}"#.into()),
        }
    }

    fn token(end: &str, refresh: &str) -> Value {
        json!({
            "accessToken": "good", "expiresAt": end, "startUrl": "https://corp.example/start", "region": "eu-west-1",
            "clientId": "c", "clientSecret": "canary", "registrationExpiresAt": "2126-01-01T00:00:00Z",
            "refreshToken": refresh,
        })
    }

    fn cache_file(folder: &Path, key: &str) -> std::path::PathBuf {
        let name = crate::key::hex(super::digest(&super::SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes()).as_ref());
        let folder = folder.join(".aws/sso/cache");
        std::fs::create_dir_all(&folder).unwrap();
        folder.join(format!("{name}.json"))
    }

    #[tokio::test]
    async fn a_token_is_shown_for_credentials_and_exchanged_when_it_is_old() {
        let (stub, folder) = (Stub::start(answer).await, tempfile::tempdir().unwrap());
        let file = cache_file(folder.path(), "corp");
        let none = chain(&stub, folder.path(), PROFILE).get().await.unwrap_err();
        assert_eq!(
            (none.kind(), none.help()),
            (ErrorKind::Unauthorized, Some("aws sso login --profile default")),
            "{none}"
        );
        std::fs::write(&file, token("2126-01-02T03:04:05Z", "renew").to_string()).unwrap();
        let found = chain(&stub, folder.path(), PROFILE).get().await.unwrap();
        assert_eq!((found.access_key_id(), found.session_token()), ("A", Some("t")));
        assert!(stub.asked()[0].path.contains("role_name=Boxes&account_id=123456789012"), "{}", stub.asked()[0].path);
        // Old: a new one is got, and kept for others.
        std::fs::write(&file, token("2020-01-02T03:04:05Z", "renew").to_string()).unwrap();
        chain(&stub, folder.path(), PROFILE).get().await.unwrap();
        let kept: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!((&kept["accessToken"], &kept["refreshToken"]), (&json!("new"), &json!("renew2")));
        assert_eq!(kept["startUrl"], "https://corp.example/start", "what is not known here stays");
        let before = stub.asked().len();
        chain(&stub, folder.path(), PROFILE).get().await.unwrap();
        assert_eq!(stub.asked().len(), before + 1, "it holds for a while");
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no draft is left");
        // One that cannot be exchanged any more.
        std::fs::write(&file, token("2020-01-02T03:04:05Z", "used").to_string()).unwrap();
        let error = chain(&stub, folder.path(), PROFILE).get().await.unwrap_err();
        assert!(error.to_string().contains("expired") && !error.to_string().contains("canary"), "{error}");
    }

    #[tokio::test]
    async fn a_profile_of_the_older_kind_signs_on_by_its_address_and_what_is_missing_is_named() {
        let (stub, folder) = (Stub::start(answer).await, tempfile::tempdir().unwrap());
        let older =
            "[default]\nsso_start_url = https://o/start\nsso_region = r-1\nsso_account_id = 1\nsso_role_name = R\n";
        let end = token("2126-01-02T03:04:05Z", "renew").to_string();
        std::fs::write(cache_file(folder.path(), "https://o/start"), end).unwrap();
        assert_eq!(chain(&stub, folder.path(), older).get().await.unwrap().access_key_id(), "A");
        for (key, profile) in
            [("sso_role_name", older.replace("sso_role_name", "x")), ("sso_region", older.replace("sso_region", "x"))]
        {
            let error = chain(&stub, folder.path(), &profile).get().await.unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
