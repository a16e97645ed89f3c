//! Images: their names, what they say of themselves, and getting them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bollard::{
    errors::Error,
    models::{HealthConfig, ImageInspect},
    query_parameters::CreateImageOptionsBuilder,
};
use futures_util::StreamExt;
use sandbox_core::{Env, ErrorKind, ImageConfig, ImageHealthcheck, Result, SandboxError, tracing};

use crate::{
    auth,
    config::PullPolicy,
    engine::{Engine, machine},
    error::{self, NAME},
};

/// How often a pull tells how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A reference to an image, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// What the engine is asked for: without tag and digest.
    name: String,
    /// `latest`, `1.2`, or `sha256:…`.
    tag: String,
    /// The registry's host.
    pub(crate) registry: String,
    /// Whether it is an id of this engine, which no registry has.
    is_id: bool,
}

impl Reference {
    /// Reads a reference; a prefix `docker://` is tolerated.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| SandboxError::invalid_input("image", why.to_owned());
        let text = text.strip_prefix("docker://").unwrap_or(text);
        let is_hex = |digits: &str| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex(text.strip_prefix("sha256:").unwrap_or(text)) {
            let (name, tag, registry) = (text.to_owned(), String::new(), String::new());
            return Ok(Self { name, tag, registry, is_id: true });
        }
        let (whole, digest) = match text.split_once('@') {
            Some((whole, digest)) if digest.strip_prefix("sha256:").is_some_and(is_hex) => (whole, Some(digest)),
            Some(_) => return Err(invalid("the digest behind '@' must be sha256: and 64 hexadecimal digits")),
            None => (text, None),
        };
        // A colon before the last slash belongs to a port.
        let (path, tag) = match whole.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (whole, None),
        };
        let first = path.split_once('/').map(|(first, _)| first);
        let registry = first.filter(|first| first.contains(['.', ':']) || *first == "localhost").unwrap_or("docker.io");
        let repository = path.strip_prefix(registry).and_then(|rest| rest.strip_prefix('/')).unwrap_or(path);
        let (host, port) = registry.split_once(':').unwrap_or((registry, "0"));
        if !host.starts_with(|c: char| c.is_ascii_alphanumeric())
            || port.is_empty()
            || !port.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Err(invalid("the registry in front must be a host, or host:port, without a scheme"));
        }
        let is_plain = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
        };
        if repository.is_empty() || !repository.split('/').all(is_plain) {
            return Err(invalid("must be [registry/]name[:tag][@digest] in lower case, such as debian:12"));
        }
        if tag.is_some_and(|tag| {
            tag.is_empty() || tag.len() > 128 || !tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        }) {
            return Err(invalid("the tag behind ':' must be 1 to 128 of a-z A-Z 0-9 . _ -"));
        }
        let tag = digest.or(tag).unwrap_or("latest").to_owned();
        Ok(Self { name: path.to_owned(), tag, registry: registry.to_owned(), is_id: false })
    }

    /// Whether it is one image for ever: an id or a digest.
    pub(crate) fn is_pinned(&self) -> bool {
        self.is_id || self.tag.contains(':')
    }

    /// What the engine is asked for, without the tag; and the tag.
    pub(crate) fn name_and_tag(&self) -> (&str, &str) {
        (&self.name, &self.tag)
    }

    /// The form in which the engine knows it.
    pub(crate) fn full(&self) -> String {
        match (self.is_id, self.tag.contains(':')) {
            (true, _) => self.name.clone(),
            (false, true) => format!("{}@{}", self.name, self.tag),
            (false, false) => format!("{}:{}", self.name, self.tag),
        }
    }
}

/// What is known of an image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    pub(crate) id: String,
    /// As it was asked for.
    pub(crate) reference: String,
    pub(crate) arch: String,
    pub(crate) config: ImageConfig,
}

/// How to get an image.
pub(crate) struct Wish<'a> {
    pub(crate) reference: &'a str,
    pub(crate) pull: PullPolicy,
    pub(crate) platform: Option<&'a str>,
}

/// Makes sure that the engine has an image, and says what it is.
///
/// # Errors
/// `InvalidInput` (a bad reference, a wrong architecture), `NotFound`, `Unauthorized`, `Exhausted` (rate limit),
/// `TimedOut`.
pub(crate) async fn get(engine: &Engine, wish: &Wish<'_>) -> Result<Image> {
    let reference = Reference::parse(wish.reference)?;
    let may_pull = wish.pull != PullPolicy::Never && !reference.is_id;
    let mut found = match wish.pull {
        PullPolicy::Always if may_pull => None,
        _ => inspect(engine, &reference).await?,
    };
    if found.as_ref().is_some_and(|image| may_pull && !is_for(image, wish.platform)) {
        // Another platform's image has the name.
        found = None;
    }
    if found.is_none() && may_pull {
        pull(engine, &reference, wish.platform).await?;
        found = inspect(engine, &reference).await?;
    }
    let Some(found) = found else {
        let missing = SandboxError::not_found(format!("the engine does not have the image {}", reference.full()));
        let help = match reference.is_id {
            true => "an id is never pulled: name the image",
            false => "pull = \"never\" is set: pull it first, or set pull = \"if_missing\"",
        };
        return Err(missing.with_provider(NAME).with_field("image").with_help(help));
    };
    let image = describe(found, &reference);
    if wish.platform.is_none() {
        let own = &engine.facts().await?.arch;
        if !image.arch.is_empty() && machine(&image.arch) != own {
            let message = format!("{} is for {}, and the engine runs on {own}", reference.full(), image.arch);
            return Err(SandboxError::invalid_input("image", message)
                .with_provider(NAME)
                .with_help("use an image for this architecture, or set platform if the engine can emulate the other"));
        }
    }
    Ok(image)
}

fn is_for(image: &ImageInspect, platform: Option<&str>) -> bool {
    let Some(platform) = platform else { return true };
    let mut parts = platform.split('/');
    let same = |wanted: Option<&str>, is: &Option<String>| wanted.is_none() || wanted == is.as_deref();
    same(parts.next(), &image.os) && same(parts.next(), &image.architecture)
}

async fn inspect(engine: &Engine, reference: &Reference) -> Result<Option<ImageInspect>> {
    match engine.docker().await?.inspect_image(&reference.full()).await {
        Ok(image) => Ok(Some(image)),
        Err(error) if error::is_missing(&error) => Ok(None),
        Err(error) => Err(error::engine("looking for the image", error)),
    }
}

async fn pull(engine: &Engine, reference: &Reference, platform: Option<&str>) -> Result<()> {
    let limit = Duration::from_secs_f64(engine.config.pull_timeout_s);
    let credentials = auth::find(&engine.config, &reference.registry).await?;
    let mut options = CreateImageOptionsBuilder::default().from_image(&reference.name).tag(&reference.tag);
    if let Some(platform) = platform {
        options = options.platform(platform);
    }
    let has_credentials = credentials.is_some();
    let mut progress = Progress::default();
    let work = async {
        let docker = engine.docker().await?;
        let mut steps = docker.create_image(Some(options.build()), None, credentials);
        let mut told: Option<Instant> = None;
        tracing::info!(image = %reference.full(), "pulling the image");
        while let Some(step) = steps.next().await {
            let step = step.map_err(|error| refused(reference, has_credentials, error))?;
            if let (Some(id), Some(detail)) = (step.id, step.progress_detail) {
                progress.layers.insert(id, (detail.current.unwrap_or(0), detail.total.unwrap_or(0)));
            }
            if told.is_none_or(|told| told.elapsed() >= PROGRESS_EVERY) {
                told = Some(Instant::now());
                let ((bytes, of_bytes), layers) = (progress.bytes(), progress.layers.len());
                tracing::info!(image = %reference.full(), bytes, of_bytes, layers, "pulling");
            }
        }
        tracing::info!(image = %reference.full(), "the image is here");
        Ok(())
    };
    let pulled = tokio::time::timeout(limit, work).await;
    pulled.unwrap_or_else(|_| {
        let ((bytes, of_bytes), seconds) = (progress.bytes(), limit.as_secs_f64());
        let message = format!(
            "pulling {} took longer than pull_timeout_s = {seconds}: {bytes} of {of_bytes} bytes are here",
            reference.full()
        );
        Err(SandboxError::timed_out(message)
            .with_provider(NAME)
            .with_field("image")
            .with_help("set a longer pull_timeout_s, or try again: layers that are here whole are not pulled again"))
    })
}

/// How far a pull is.
#[derive(Default)]
struct Progress {
    /// Bytes of each layer, and of how many.
    layers: BTreeMap<String, (i64, i64)>,
}

impl Progress {
    fn bytes(&self) -> (i64, i64) {
        self.layers.values().fold((0, 0), |sum, layer| (sum.0 + layer.0, sum.1 + layer.1))
    }
}

/// What a registry refused with. The engine passes it on as text only.
pub(crate) fn refused(reference: &Reference, has_credentials: bool, error: Error) -> SandboxError {
    let text = match &error {
        Error::DockerResponseServerError { message, .. } => message.to_ascii_lowercase(),
        Error::DockerStreamError { error } => error.to_ascii_lowercase(),
        _ => String::new(),
    };
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let (kind, why, help) = if says(&["toomanyrequests", "too many requests", "rate limit"]) {
        let help = "wait, log in to the registry, or use a mirror";
        (ErrorKind::Exhausted, "the registry limits how often it is asked", help)
    } else if says(&["unauthorized", "authentication required", "no basic auth", "denied: requested access"]) {
        let help = match has_credentials {
            true => "the credentials for this registry were refused: see registry_auth, or docker login",
            false => "set registry_auth for this registry, or run docker login",
        };
        (ErrorKind::Unauthorized, "the registry refused access", help)
    } else if says(&["no match for platform", "no matching manifest", "does not match the specified platform"]) {
        let help = "the image does not exist for this architecture: name another one, or set platform";
        return SandboxError::invalid_input("image", format!("{} is not there for this platform", reference.full()))
            .with_provider(NAME)
            .with_help(help)
            .with_source(error);
    } else if says(&["not found", "manifest unknown", "name unknown", "pull access denied", "does not exist"]) {
        let help = "check name and tag; a private image needs registry_auth or docker login";
        (ErrorKind::NotFound, "there is no such image", help)
    } else if says(&["connection refused", "no such host", "i/o timeout", "timeout exceeded", "no route"]) {
        let help = "the engine's machine must reach the registry";
        (ErrorKind::Unavailable, "the registry cannot be reached", help)
    } else {
        return error::as_create(error::engine(&format!("pulling {}", reference.full()), error));
    };
    SandboxError::new(kind, format!("pulling {}: {why}", reference.full()))
        .with_provider(NAME)
        .with_field("image")
        .with_help(help)
        .with_source(error)
}

fn describe(found: ImageInspect, reference: &Reference) -> Image {
    let config = found.config.unwrap_or_default();
    let variables = config.env.unwrap_or_default();
    let env: Env =
        variables.iter().filter_map(|pair| pair.split_once('=')).filter(|(name, _)| !name.is_empty()).collect();
    let ports = config.exposed_ports.unwrap_or_default();
    let arch = found.architecture.unwrap_or_default();
    let id = found.id.unwrap_or_default();
    let config = ImageConfig {
        id: id.clone(),
        entrypoint: config.entrypoint.unwrap_or_default(),
        command: config.cmd.unwrap_or_default(),
        env,
        workdir: config.working_dir.filter(|folder| !folder.is_empty()),
        user: config.user.filter(|user| !user.is_empty()),
        exposed_ports: ports.iter().filter_map(|port| port.split('/').next()?.parse().ok()).collect(),
        labels: config.labels.unwrap_or_default().into_iter().collect(),
        platform: format!("{}/{arch}", found.os.unwrap_or_default()),
        healthcheck: config.healthcheck.and_then(healthcheck),
        stop_signal: config.stop_signal.filter(|signal| !signal.is_empty()),
    };
    Image { id, reference: reference.full(), arch, config }
}

/// None for an image that only inherits.
fn healthcheck(found: HealthConfig) -> Option<ImageHealthcheck> {
    const NANOS: f64 = 1e9;
    let seconds = |nanos: Option<i64>| nanos.filter(|nanos| *nanos > 0).map(|nanos| nanos as f64 / NANOS);
    Some(ImageHealthcheck {
        test: found.test.filter(|test| !test.is_empty())?,
        interval_s: seconds(found.interval),
        timeout_s: seconds(found.timeout),
        retries: found.retries.and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0),
        start_period_s: seconds(found.start_period),
        start_interval_s: seconds(found.start_interval),
    })
}

#[cfg(test)]
mod tests {
    use bollard::errors::Error;
    use sandbox_core::ErrorKind;

    use super::{Reference, refused};

    #[test]
    fn references_are_completed_and_wrong_ones_refused() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, full, registry) in [
            ("debian", "debian:latest", "docker.io"),
            ("docker://debian:12", "debian:12", "docker.io"),
            ("ghcr.io/a/b:1.2-x", "ghcr.io/a/b:1.2-x", "ghcr.io"),
            ("localhost:5000/a", "localhost:5000/a:latest", "localhost:5000"),
            ("127.0.0.1:5000/a:t", "127.0.0.1:5000/a:t", "127.0.0.1:5000"),
            ("user/name", "user/name:latest", "docker.io"),
            (&format!("debian@{digest}"), &format!("debian@{digest}"), "docker.io"),
            (&digest, &digest, ""),
        ] {
            let reference = Reference::parse(text).unwrap();
            assert_eq!((reference.full().as_str(), reference.registry.as_str()), (full, registry), "{text}");
        }
        for bad in ["", "Debian", "a:", "a@sha256:12", "a b", "docker://docker://a", "http://a/b", "../x", "a:t:u", "ä"]
        {
            let error = Reference::parse(bad).unwrap_err();
            assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("image")), "{bad}");
        }
    }

    #[test]
    fn c08_what_registries_say_has_a_kind_of_its_own() {
        let reference = Reference::parse("r.example/x:1").unwrap();
        for (text, kind) in [
            ("manifest for r.example/x:1 not found: manifest unknown", ErrorKind::NotFound),
            ("pull access denied for x, repository does not exist or may require 'docker login'", ErrorKind::NotFound),
            ("Get https://r.example/v2/: unauthorized: authentication required", ErrorKind::Unauthorized),
            ("Get http://r.example/v2/: no basic auth credentials", ErrorKind::Unauthorized),
            ("toomanyrequests: You have reached your pull rate limit", ErrorKind::Exhausted),
            ("no matching manifest for linux/arm64 in the manifest list entries", ErrorKind::InvalidInput),
            ("dial tcp 127.0.0.1:1: connect: connection refused", ErrorKind::Unavailable),
            ("write /x: no space left on device", ErrorKind::Exhausted),
        ] {
            let error = refused(&reference, false, Error::DockerStreamError { error: text.to_owned() });
            assert_eq!(error.kind(), kind, "{text}: {error}");
            assert!(error.to_string().contains("r.example/x:1"), "{error}");
        }
    }
}
