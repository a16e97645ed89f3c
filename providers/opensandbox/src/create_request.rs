//! A spec as the body of a create.

use sandbox_core::{Result, SandboxError, SandboxSpec, VolumeSource};
use serde_json::{Map, Value, json};

use crate::{
    config::OpenSandboxConfig,
    error::NAME,
    exec::{ENCODED_PREFIX, printf_format},
    labels,
    options::{Options, limits},
    snapshots::IMAGE_PREFIX,
    state::{KEPT_KEY, Kept},
};

/// What keeps a sandbox without a main process of its own alive.
const ENTRYPOINT: [&str; 3] = ["tail", "-f", "/dev/null"];

/// The shortest life that a server gives, in seconds.
const SHORTEST_TTL_S: f64 = 60.0;

/// Keys under which servers with an extension for it look for the pull policy.
const PULL_POLICY_KEYS: [&str; 2] = ["imagePullPolicy", "opensandbox.extensions.image-pull-policy"];

/// Everything that is known before anything is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    body: Map<String, Value>,
    pub(crate) kept: Kept,
    pub(crate) skip_health_check: bool,
}

impl Plan {
    pub(crate) fn new(spec: &SandboxSpec, config: &OpenSandboxConfig) -> Result<Self> {
        let options = Options::of(spec)?;
        let kept = Kept::of(spec);
        check_renewal(spec, config)?;
        let mut body = Map::new();
        source(spec, config, &options, &mut body)?;
        if let Some(ttl) = spec.ttl_s {
            body.insert("timeout".to_owned(), json!(ttl.max(SHORTEST_TTL_S).ceil() as u64));
        }
        let limits = limits(spec);
        if let Some(requests) = &options.resource_requests {
            body.insert("resourceRequests".to_owned(), requests.value(&limits));
        }
        body.insert("resourceLimits".to_owned(), json!(limits));
        let env: Map<String, Value> = spec
            .env
            .iter()
            .map(|(name, value)| match value.as_str() {
                Some(text) => (name.to_owned(), json!(text)),
                None => (format!("{ENCODED_PREFIX}{name}"), json!(printf_format(value.as_bytes()))),
            })
            .collect();
        if !env.is_empty() {
            body.insert("env".to_owned(), Value::Object(env));
        }
        let labels = labels::all(spec, &config.attribution, "")?;
        body.insert("metadata".to_owned(), json!(labels));
        let volumes = volumes(spec, &options);
        if !volumes.is_empty() {
            body.insert("volumes".to_owned(), json!(volumes));
        }
        if let Some(platform) = &options.platform {
            body.insert("platform".to_owned(), json!({ "os": platform.os, "arch": platform.arch }));
        }
        if let Some(policy) = &options.network_policy {
            body.insert("networkPolicy".to_owned(), json!(policy));
        }
        let mut extensions = options.extensions.clone();
        if let Some(policy) = config.create.image_pull_policy {
            for key in PULL_POLICY_KEYS {
                extensions.entry(key.to_owned()).or_insert_with(|| policy.as_str().to_owned());
            }
        }
        extensions.insert(KEPT_KEY.to_owned(), json!(kept).to_string());
        body.insert("extensions".to_owned(), json!(extensions));
        let skip_health_check = options.skip_health_check.unwrap_or(config.create.skip_health_check);
        Ok(Self { body, kept, skip_health_check })
    }

    /// The body of one try.
    pub(crate) fn body(&self, create: &str) -> Value {
        let mut body = Value::Object(self.body.clone());
        body["metadata"][labels::CREATE_KEY] = json!(create);
        body
    }
}

fn check_renewal(spec: &SandboxSpec, config: &OpenSandboxConfig) -> Result<()> {
    let Some(interval) = config.create.renew_interval_s else { return Ok(()) };
    match spec.ttl_s {
        Some(ttl) if ttl > interval => Ok(()),
        Some(ttl) => {
            let why = format!("must be above create.renew_interval_s = {interval}, not {ttl}");
            Err(SandboxError::invalid_input("ttl_s", why).with_provider(NAME))
        }
        None => Err(SandboxError::invalid_input("ttl_s", "is needed with create.renew_interval_s").with_provider(NAME)),
    }
}

fn source(
    spec: &SandboxSpec,
    config: &OpenSandboxConfig,
    options: &Options,
    body: &mut Map<String, Value>,
) -> Result<()> {
    // A snapshot stands for an image under its own id, too.
    let as_image = spec.image.as_deref().and_then(|image| image.strip_prefix(IMAGE_PREFIX)).map(str::to_owned);
    if let Some(snapshot) = options.snapshot_id.as_ref().or(as_image.as_ref()) {
        body.insert("snapshotId".to_owned(), json!(snapshot));
        if let Some(entrypoint) = &spec.entrypoint {
            body.insert("entrypoint".to_owned(), json!(entrypoint));
        }
        return Ok(());
    }
    let image = spec.image.as_ref().or(config.create.default_image.as_ref()).ok_or_else(|| {
        SandboxError::invalid_input("image", "is needed")
            .with_help("set image, or create.default_image in the settings of opensandbox")
            .with_provider(NAME)
    })?;
    let mut source = json!({ "uri": image });
    if let Some(auth) = &options.image_auth {
        source["auth"] = json!({ "username": auth.username, "password": auth.password.expose() });
    }
    body.insert("image".to_owned(), source);
    let default = || ENTRYPOINT.map(str::to_owned).to_vec();
    body.insert("entrypoint".to_owned(), json!(spec.entrypoint.clone().unwrap_or_else(default)));
    Ok(())
}

fn volumes(spec: &SandboxSpec, options: &Options) -> Vec<Value> {
    let own = spec.volumes.iter().enumerate().map(|(index, volume)| {
        let mut all =
            json!({ "name": format!("volume-{index}"), "mountPath": volume.target, "readOnly": volume.read_only });
        match &volume.source {
            VolumeSource::Bind(path) => all["host"] = json!({ "path": path }),
            VolumeSource::Named(name) => all["pvc"] = json!({ "claimName": name }),
            // Refused before: the field is not honoured.
            _ => {}
        }
        all
    });
    own.chain(options.volumes.iter().map(|volume| json!(volume))).collect()
}
