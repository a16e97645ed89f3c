//! Images in the registry of AWS: copies of others, and what is built there. Both by the build service, so that this machine
//! needs no builder; what a repository has already is not made again.

mod archive;
mod build;
mod job;
mod story;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use sandbox_core::{Result, SandboxError, tracing};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::Instant};

pub(crate) use self::build::build_folder;
use self::job::Order;
use crate::{
    aws::{Repository, is_in_ecr},
    config::{Architecture, FargateConfig},
    error::NAME,
    key::sha256,
    provider::{CALL_LIMIT, Shared},
};

/// Digits of the hash in a tag.
const HASH_DIGITS: usize = 24;
/// The part of a tag that people read, in characters.
const READABLE_MAX: usize = 80;

/// The repository, and which of its images are being made.
#[derive(Default)]
pub(crate) struct Images {
    repository: OnceCell<Repository>,
    made: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Images {
    /// Held by whoever makes an image of this reference.
    fn turn(&self, image: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody holds or waits for are forgotten.
        made.retain(|name, turn| name == image || Arc::strong_count(turn) > 1);
        made.entry(image.to_owned()).or_default().clone()
    }
}

impl Shared {
    /// The repository of the settings.
    async fn repository(&self, deadline: Instant) -> Result<&Repository> {
        let named = self.config.ecr_repository.as_deref().ok_or_else(|| {
            let error = SandboxError::unsupported_field(NAME, "ecr_repository", "is needed for this, and not set");
            error.with_help("name a repository of ECR")
        })?;
        let find = || self.aws.repository(named, deadline);
        self.images.repository.get_or_try_init(find).await.map_err(|error| error.with_provider(NAME))
    }
}

/// The reference by which AWS pulls an image: a copy of its own, where that is wanted.
///
/// # Errors
/// `NotFound` for a repository that is none, saying what to do; why the copy failed.
pub(crate) async fn mirrored(shared: &Arc<Shared>, image: &str) -> Result<String> {
    if !shared.config.auto_mirror || is_in_ecr(image) {
        return Ok(image.to_owned());
    }
    let (shared, image) = (shared.clone(), image.to_owned());
    // Goes on when its caller has gone: the next one finds it.
    let copying = tokio::spawn(async move { copy(&shared, &image).await });
    copying.await.unwrap_or_else(|_| Err(SandboxError::internal("copying an image panicked")))
}

async fn copy(shared: &Arc<Shared>, image: &str) -> Result<String> {
    check_reference(image)?;
    let repository = shared.repository(Instant::now() + CALL_LIMIT).await?;
    let tag = mirror_tag(image, &shared.config);
    let target = repository.image(&tag);
    let turn = shared.images.turn(&target);
    let _turn = turn.lock().await;
    if shared.aws.has_image(repository, &tag, Instant::now() + CALL_LIMIT).await? {
        return Ok(target);
    }
    let mut variables = vec![
        plain("SANDBOX_REGISTRY", repository.registry()),
        plain("SANDBOX_SOURCE", image),
        plain("SANDBOX_IMAGE", &target),
        plain("SANDBOX_PLATFORM", platform(&shared.config)),
    ];
    let mut commands = vec![LOG_IN];
    if let Some(secret) = &shared.config.image_pull_secret_arn {
        variables.push(plain("SANDBOX_SOURCE_REGISTRY", registry_of(image)));
        for (name, key) in [("SANDBOX_SOURCE_USER", "username"), ("SANDBOX_SOURCE_PASSWORD", "password")] {
            variables.push(json!({ "name": name, "value": format!("{secret}:{key}"), "type": "SECRETS_MANAGER" }));
        }
        commands.push(LOG_IN_TO_SOURCE);
    }
    commands.extend([
        "docker pull --platform \"$SANDBOX_PLATFORM\" \"$SANDBOX_SOURCE\"",
        "docker tag \"$SANDBOX_SOURCE\" \"$SANDBOX_IMAGE\"",
        "docker push \"$SANDBOX_IMAGE\"",
    ]);
    let input = json!({
        "sourceTypeOverride": "NO_SOURCE",
        "buildspecOverride": build_spec(&commands),
        "environmentVariablesOverride": variables,
    });
    Order { input, what: "copying the image" }.run(shared, None).await?;
    tracing::debug!("an image was copied");
    made(shared, repository, &tag).await?;
    Ok(target)
}

/// Checks that what the service says it made is there.
async fn made(shared: &Shared, repository: &Repository, tag: &str) -> Result<()> {
    match shared.aws.has_image(repository, tag, Instant::now() + CALL_LIMIT).await? {
        true => Ok(()),
        false => {
            let text = "the build service says that it made an image, and the repository does not have it";
            Err(SandboxError::create(text).with_provider(NAME).with_field("ecr_repository"))
        }
    }
}

const LOG_IN: &str = "aws ecr get-login-password --region \"$AWS_DEFAULT_REGION\" | docker login --username AWS \
                      --password-stdin \"$SANDBOX_REGISTRY\"";
const LOG_IN_TO_SOURCE: &str = "printf %s \"$SANDBOX_SOURCE_PASSWORD\" | docker login --username \
                                \"$SANDBOX_SOURCE_USER\" --password-stdin \"$SANDBOX_SOURCE_REGISTRY\"";

/// What the service runs. Nothing of a request is in it: that is in variables and files.
fn build_spec(commands: &[&str]) -> String {
    json!({ "version": 0.2, "phases": { "build": { "commands": commands } } }).to_string()
}

fn plain(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value, "type": "PLAINTEXT" })
}

fn platform(config: &FargateConfig) -> &'static str {
    match config.architecture {
        Architecture::X86_64 => "linux/amd64",
        Architecture::Aarch64 => "linux/arm64",
    }
}

/// The host of an image's registry; that of the Docker Hub where it names none.
fn registry_of(image: &str) -> &str {
    let host = image.split_once('/').map(|(host, _)| host);
    host.filter(|host| host.contains(['.', ':']) || *host == "localhost").unwrap_or("docker.io")
}

/// Letters, digits and what else is in references.
fn check_reference(image: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:/@-".contains(c);
    match image.starts_with(|c: char| c.is_ascii_alphanumeric()) && image.chars().all(is_plain) && image.len() <= 1024 {
        true => Ok(()),
        false => Err(SandboxError::invalid_input("image", "is not the reference of an image").with_provider(NAME)),
    }
}

/// What a text becomes in a tag: never the whole truth, which is what the hash is for.
fn readable(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' };
    text.chars().map(plain).take(READABLE_MAX).collect::<String>().trim_matches(['-', '.']).to_owned()
}

fn mirror_tag(image: &str, config: &FargateConfig) -> String {
    let hash = sha256(format!("{image}\n{}", platform(config)).as_bytes());
    format!("mirror-{}-{}", readable(image), &hash[..HASH_DIGITS])
}

#[cfg(test)]
mod tests {
    use super::{check_reference, mirror_tag, readable, registry_of};
    use crate::config::{Architecture, FargateConfig};

    #[test]
    fn different_images_have_different_tags_that_people_can_read() {
        let config = FargateConfig::default();
        let tag = |image: &str| mirror_tag(image, &config);
        assert!(tag("ghcr.io/a/b:1").starts_with("mirror-ghcr.io-a-b-1-"), "{}", tag("ghcr.io/a/b:1"));
        for other in ["a/b-c", "a-b:c", "a/b@c"] {
            assert_ne!(tag("a/b:c"), tag(other), "{other}");
        }
        assert!(tag(&"x".repeat(1000)).len() <= 128);
        let arm = FargateConfig { architecture: Architecture::Aarch64, ..FargateConfig::default() };
        assert_ne!(tag("a"), mirror_tag("a", &arm));
        assert_eq!(readable("-a b/..."), "a-b");
    }

    #[test]
    fn only_references_get_into_a_build() {
        for bad in ["", "-x", "a b", "a;b", "a$(b)", "a`b`", "a\nb"] {
            assert_eq!(check_reference(bad).unwrap_err().field(), Some("image"), "{bad}");
        }
        check_reference("registry.example:5000/a/b_c:1.2-x@sha256:00").unwrap();
        for (image, registry) in [("debian", "docker.io"), ("a/b", "docker.io"), ("x.y/a", "x.y"), ("h:5/a", "h:5")] {
            assert_eq!(registry_of(image), registry);
        }
    }
}
