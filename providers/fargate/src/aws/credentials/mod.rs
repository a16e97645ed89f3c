//! Who asks: the places where credentials can be, in their order, and the one answer that is kept until it is old.

mod metadata;
mod process;
mod role;
mod sso;
mod sts;
mod web_identity;

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_smithy_types::{DateTime, date_time::Format};
use sandbox_core::{Result, SandboxError};
use serde::Deserialize;
use tokio::sync::Mutex;

use self::sts::Sts;
use super::{
    Http,
    environment::Environment,
    profile::Profile,
    region::{Service, endpoint},
};
use crate::config::FargateConfig;

/// New ones are got so long before the old ones end, …
const EARLY: Duration = Duration::from_secs(300);
/// … and what cannot be renewed is used up to so long before its end.
const LATEST: Duration = Duration::from_secs(5);

/// Where the credentials of this provider are.
pub(crate) struct Chain {
    config: FargateConfig,
    environment: Environment,
    profile: Profile,
    http: Http,
    region: String,
    /// Where the token service is.
    sts: String,
    kept: Mutex<Option<Credentials>>,
}

impl Chain {
    pub(crate) fn new(
        config: &FargateConfig,
        environment: Environment,
        profile: Profile,
        http: Http,
        region: &str,
    ) -> Self {
        let sts = endpoint(Service::Sts, region, config, &environment);
        let (config, region) = (config.clone(), region.to_owned());
        Self { config, environment, profile, http, region, sts, kept: Mutex::new(None) }
    }

    fn sts(&self) -> Sts<'_> {
        Sts { http: &self.http, url: &self.sts, region: &self.region }
    }

    /// Credentials that hold for a while. Where many ask at once, one gets them for all.
    ///
    /// # Errors
    /// `Unauthorized`, naming the places that were looked at.
    pub(crate) async fn get(&self) -> Result<Credentials> {
        if let Some(fixed) = &self.config.credentials {
            let token = fixed.session_token.as_ref().map(|token| token.expose().to_owned());
            return Ok(Credentials::new(
                &fixed.access_key_id,
                fixed.secret_access_key.expose(),
                token,
                None,
                "settings",
            ));
        }
        let mut kept = self.kept.lock().await;
        if let Some(credentials) = kept.as_ref().filter(|credentials| holds(credentials, EARLY)) {
            return Ok(credentials.clone());
        }
        match self.find().await {
            Ok(credentials) => {
                *kept = Some(credentials.clone());
                Ok(credentials)
            }
            // Those that end soon are better than none.
            Err(error) => kept.clone().filter(|credentials| holds(credentials, LATEST)).ok_or(error),
        }
    }

    /// Forgets these credentials: AWS says that they are old.
    pub(crate) async fn forget(&self, old: &Credentials) {
        let mut kept = self.kept.lock().await;
        if kept.as_ref().is_some_and(|kept| kept.access_key_id() == old.access_key_id()) {
            *kept = None;
        }
    }

    async fn find(&self) -> Result<Credentials> {
        // A profile that was asked for by name: nothing else is looked at.
        if self.config.profile.is_some() {
            return match self.of_profile().await? {
                Some(credentials) => Ok(credentials),
                None => Err(self.nothing_in_profile()),
            };
        }
        if let Some(credentials) = of_environment(&self.environment) {
            return Ok(credentials);
        }
        if let Some(credentials) = web_identity::find(&self.sts(), &self.environment).await? {
            return Ok(credentials);
        }
        if let Some(credentials) = self.of_profile().await? {
            return Ok(credentials);
        }
        if let Some(credentials) = metadata::of_container(&self.http, &self.environment).await? {
            return Ok(credentials);
        }
        if let Some(credentials) = metadata::of_instance(&self.http, &self.environment).await? {
            return Ok(credentials);
        }
        let looked = "settings, environment, web identity, profile, container, instance";
        Err(SandboxError::unauthorized(format!("there are no AWS credentials; looked at: {looked}"))
            .with_field("credentials")
            .with_help("set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"))
    }

    async fn of_profile(&self) -> Result<Option<Credentials>> {
        self.of(&self.profile, &mut Vec::new()).await
    }

    fn nothing_in_profile(&self) -> SandboxError {
        let what = if self.profile.is_known() { "holds no credentials" } else { "is in no AWS file" };
        SandboxError::unauthorized(format!("profile {:?} {what}", self.profile.name)).with_field("profile")
    }
}

fn holds(credentials: &Credentials, at_least: Duration) -> bool {
    credentials.expiry().is_none_or(|end| end > SystemTime::now() + at_least)
}

fn of_environment(environment: &Environment) -> Option<Credentials> {
    let (id, secret) = (environment.get("AWS_ACCESS_KEY_ID")?, environment.get("AWS_SECRET_ACCESS_KEY")?);
    Some(Credentials::new(id, secret, environment.get("AWS_SESSION_TOKEN").map(str::to_owned), None, "environment"))
}

/// Credentials as services and programs print them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    access_key_id: String,
    secret_access_key: String,
    #[serde(default, alias = "Token")]
    session_token: Option<String>,
    #[serde(default)]
    expiration: Option<String>,
}

impl Printed {
    fn read(text: &[u8], source: &'static str) -> Result<Credentials> {
        let printed: Self = serde_json::from_slice(text)
            // The text of the error may quote what was printed.
            .map_err(|_| SandboxError::unauthorized(format!("what the {source} says is no credentials")))?;
        printed.into_credentials(source)
    }

    fn into_credentials(self, source: &'static str) -> Result<Credentials> {
        let end = self.expiration.as_deref().map(|text| {
            let date = DateTime::from_str(text, Format::DateTimeWithOffset).ok();
            date.and_then(|date| SystemTime::try_from(date).ok()).ok_or_else(|| {
                SandboxError::unauthorized(format!("the end of the credentials of the {source} is no date"))
            })
        });
        Ok(Credentials::new(self.access_key_id, self.secret_access_key, self.session_token, end.transpose()?, source))
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, Secret};

    use super::{Chain, Printed};
    use crate::{
        aws::{Http, environment::Environment, profile::Profile},
        config::{FargateConfig, StaticCredentials},
    };

    fn chain(config: FargateConfig, pairs: &[(&str, &str)], profile: Profile) -> Chain {
        // Nobody asks this machine's own metadata service.
        let pairs = [pairs, &[("AWS_EC2_METADATA_DISABLED", "true")]].concat();
        let config = FargateConfig { endpoint_url: Some("http://127.0.0.1:9".into()), ..config };
        Chain::new(&config, Environment::of(&pairs), profile, Http::new().unwrap(), "us-east-1")
    }

    const KEYS: [(&str, &str); 3] =
        [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", "t")];

    #[tokio::test]
    async fn the_first_place_that_has_credentials_is_taken() {
        let profile = || Profile::parse("", "[p]\naws_access_key_id=P\naws_secret_access_key=s", "p");
        let fixed =
            StaticCredentials { access_key_id: "S".into(), secret_access_key: Secret::new("s"), session_token: None };
        let config = FargateConfig { credentials: Some(fixed), ..FargateConfig::default() };
        assert_eq!(chain(config, &KEYS, profile()).get().await.unwrap().access_key_id(), "S");
        let found = chain(FargateConfig::default(), &KEYS, profile()).get().await.unwrap();
        assert_eq!((found.access_key_id(), found.session_token()), ("E", Some("t")));
        assert_eq!(chain(FargateConfig::default(), &[], profile()).get().await.unwrap().access_key_id(), "P");
        let named = FargateConfig { profile: Some("p".into()), ..FargateConfig::default() };
        assert_eq!(chain(named, &KEYS, profile()).get().await.unwrap().access_key_id(), "P");
    }

    #[tokio::test]
    async fn where_nothing_is_the_error_says_what_to_do() {
        let error = chain(FargateConfig::default(), &[], Profile::default()).get().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized);
        assert!(error.help().unwrap().contains("AWS_PROFILE"));
        let named = FargateConfig { profile: Some("p".into()), ..FargateConfig::default() };
        let error = chain(named, &KEYS, Profile::parse("", "", "p")).get().await.unwrap_err();
        assert!(error.to_string().contains("is in no AWS file"), "{error}");
    }

    #[tokio::test]
    async fn f07_those_that_aws_calls_old_are_asked_for_again_and_others_kept() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        let keys = r#"{"Version":1,"AccessKeyId":"A%s","SecretAccessKey":"s"}"#;
        let script = format!("echo x >> {0}; printf '{keys}' $(wc -l < {0})", count.display());
        let profile = Profile::parse(&format!("[default]\ncredential_process = {script}"), "", "default");
        let chain = chain(FargateConfig::default(), &[], profile);
        let first = chain.get().await.unwrap();
        assert_eq!(first.access_key_id(), "A1");
        assert_eq!(chain.get().await.unwrap().access_key_id(), "A1", "kept");
        chain.forget(&first).await;
        assert_eq!(chain.get().await.unwrap().access_key_id(), "A2");
        chain.forget(&first).await;
        assert_eq!(chain.get().await.unwrap().access_key_id(), "A2", "others are not forgotten");
    }

    #[test]
    fn printed_credentials_are_read_with_their_end_and_never_quoted() {
        let text = br#"{"AccessKeyId":"A","SecretAccessKey":"s","Token":"t","Expiration":"2026-01-02T03:04:05Z"}"#;
        let read = Printed::read(text, "test").unwrap();
        let end = read.expiry().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!((read.session_token(), end), (Some("t"), 1_767_323_045));
        let error = Printed::read(br#"{"AccessKeyId":"canary"}"#, "test").unwrap_err();
        assert!(!error.to_string().contains("canary"));
    }
}
