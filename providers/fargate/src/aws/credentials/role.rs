//! What a profile says: keys, a program, a sign-on, or a role that is assumed for somebody else.

use std::pin::Pin;

use aws_credential_types::Credentials;
use sandbox_core::{Result, SandboxError};

use super::{Chain, metadata, of_environment, process, sts::Role, web_identity};
use crate::aws::profile::Profile;

/// How many profiles may lead to each other.
const PROFILES_MAX: usize = 8;

type Found<'a> = Pin<Box<dyn Future<Output = Result<Option<Credentials>>> + Send + 'a>>;

impl Chain {
    /// The credentials of a profile; none where it has none. `passed`: the profiles that led here.
    pub(super) fn of<'a>(&'a self, profile: &'a Profile, passed: &'a mut Vec<String>) -> Found<'a> {
        Box::pin(async move {
            if let Some(arn) = profile.get("role_arn") {
                return self.of_role(profile, arn, passed).await.map(Some);
            }
            if let Some(credentials) = self.of_sso(profile).await? {
                return Ok(Some(credentials));
            }
            if let Some(credentials) = keys(profile) {
                return Ok(Some(credentials));
            }
            match profile.get("credential_process") {
                Some(command) => process::run(command).await.map(Some),
                None => Ok(None),
            }
        })
    }

    async fn of_role(&self, profile: &Profile, arn: &str, passed: &mut Vec<String>) -> Result<Credentials> {
        let wrong = |what: String| {
            SandboxError::unauthorized(format!("profile {:?} {what}", profile.name)).with_field("profile")
        };
        if profile.get("mfa_serial").is_some() {
            let help = format!(
                "add to a profile: credential_process = aws configure export-credentials --profile {}",
                profile.name
            );
            return Err(wrong("needs a code of a device for its role, which nobody is asked for here".to_owned())
                .with_help(help));
        }
        let role = Role {
            arn,
            session: profile.get("role_session_name"),
            external_id: profile.get("external_id"),
            duration: profile.get("duration_seconds"),
        };
        if let Some(path) = profile.get("web_identity_token_file") {
            return web_identity::exchange(&self.sts(), &role, path).await;
        }
        let source = match (profile.get("source_profile"), profile.get("credential_source")) {
            (Some(_), Some(_)) => {
                return Err(wrong("has source_profile and credential_source: only one can hold".into()));
            }
            (None, None) => {
                return Err(wrong("has role_arn, but neither source_profile nor credential_source".to_owned()));
            }
            // A role of its own keys.
            (Some(name), None) if name == profile.name => {
                keys(profile).ok_or_else(|| wrong("is its own source_profile, and has no keys".to_owned()))?
            }
            (Some(name), None) => {
                passed.push(profile.name.clone());
                if passed.len() >= PROFILES_MAX || passed.iter().any(|one| one == name) {
                    return Err(wrong(format!("leads in a circle, or too far: {}", passed.join(" -> "))));
                }
                let other = profile.other(name);
                let found = self.of(&other, passed).await?;
                found.ok_or_else(|| wrong(format!("has source_profile {name:?}, which has no credentials")))?
            }
            (None, Some(source)) => {
                let found = match source.to_ascii_lowercase().as_str() {
                    "environment" => of_environment(&self.environment),
                    "ec2instancemetadata" => metadata::of_instance(&self.http, &self.environment).await?,
                    "ecscontainer" => metadata::of_container(&self.http, &self.environment).await?,
                    _ => return Err(wrong(format!("has credential_source {source:?}, which is none"))),
                };
                found.ok_or_else(|| wrong(format!("has credential_source {source:?}, where nothing is")))?
            }
        };
        self.sts().assume(&role, &source).await
    }
}

fn keys(profile: &Profile) -> Option<Credentials> {
    let (id, secret) = (profile.get("aws_access_key_id")?, profile.get("aws_secret_access_key")?);
    Some(Credentials::new(id, secret, profile.get("aws_session_token").map(str::to_owned), None, "profile"))
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;

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

    fn chain(stub: &Stub, profile: &str, name: &str, pairs: &[(&str, &str)]) -> Chain {
        let pairs = [pairs, &[("AWS_EC2_METADATA_DISABLED", "true")]].concat();
        let config = FargateConfig {
            endpoint_url: Some(stub.url()),
            profile: Some(name.to_owned()),
            ..FargateConfig::default()
        };
        let profile = Profile::parse(profile, "", name);
        Chain::new(&config, Environment::of(&pairs), profile, Http::new().unwrap(), "eu-central-1")
    }

    /// Gives each role a key that says who asked for it.
    fn answer(asked: &Asked) -> (u16, String) {
        let signed = asked.header("authorization").unwrap_or_default();
        let by = signed.split("Credential=").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or("nobody");
        let role = asked.body.split("RoleArn=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default();
        let key = format!("{role}-for-{by}");
        (
            200,
            format!(
                "<R><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken></R>"
            ),
        )
    }

    #[tokio::test]
    async fn a_role_is_assumed_for_the_profile_it_names_and_that_for_its_own() {
        let stub = Stub::start(answer).await;
        let files = "[profile base]\naws_access_key_id = K\naws_secret_access_key = s\n\
                     [profile one]\nrole_arn = R1\nsource_profile = base\nexternal_id = x y\nduration_seconds = 900\n\
                     role_session_name = me\n[profile two]\nrole_arn = R2\nsource_profile = one\n";
        let found = chain(&stub, files, "two", &[]).get().await.unwrap();
        assert_eq!((found.access_key_id(), found.session_token()), ("R2-for-R1-for-K", Some("t")));
        let asked = stub.asked();
        for part in ["Action=AssumeRole&", "RoleSessionName=me", "ExternalId=x+y", "DurationSeconds=900"] {
            assert!(asked[0].body.contains(part), "{part} is not in {}", asked[0].body);
        }
        assert!(asked[0].header("authorization").unwrap().contains("/eu-central-1/sts/aws4_request"));
        assert_eq!(asked[1].header("x-amz-security-token"), Some("t"));
        let own =
            "[profile own]\nrole_arn = R\nsource_profile = own\naws_access_key_id = O\naws_secret_access_key = s\n";
        assert_eq!(chain(&stub, own, "own", &[]).get().await.unwrap().access_key_id(), "R-for-O");
        let keys = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "s")];
        let source = "[profile p]\nrole_arn = R\ncredential_source = Environment\n";
        assert_eq!(chain(&stub, source, "p", &keys).get().await.unwrap().access_key_id(), "R-for-E");
    }

    #[tokio::test]
    async fn what_leads_nowhere_is_told_by_its_profile() {
        let stub = Stub::start(answer).await;
        let base = "[profile p]\nrole_arn = R\n";
        for (more, part) in [
            ("", "neither source_profile nor credential_source"),
            ("source_profile = p\n", "is its own source_profile"),
            ("source_profile = q\n[profile q]\nrole_arn = S\nsource_profile = p\n", "circle"),
            ("source_profile = none\n", "has no credentials"),
            ("credential_source = Environment\n", "where nothing is"),
            ("credential_source = Elsewhere\n", "which is none"),
            ("source_profile = q\ncredential_source = Environment\n", "only one can hold"),
            ("mfa_serial = m\nsource_profile = q\n", "code of a device"),
        ] {
            let error = chain(&stub, &format!("{base}{more}"), "p", &[]).get().await.unwrap_err();
            assert_eq!((error.kind(), error.field()), (ErrorKind::Unauthorized, Some("profile")), "{more}: {error}");
            assert!(error.to_string().contains(part), "{more}: {error}");
        }
        assert!(stub.asked().is_empty(), "nobody was asked");
    }
}
