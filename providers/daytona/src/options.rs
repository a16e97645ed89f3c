//! From a spec to the body of the request that makes a sandbox.

use sandbox_core::{NetworkMode, Result, SandboxError, SandboxSpec, VolumeSource, from_json};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    config::{CreateConfig, check_allow_list, check_language},
    labels::labels,
};

/// What `provider_options` may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// A snapshot to make it from, by name or id; not together with an image.
    snapshot: Option<String>,
    /// Volumes of the service.
    volumes: Vec<VolumeOption>,
    language: Option<String>,
    public: Option<bool>,
    auto_stop_interval: Option<u32>,
    auto_archive_interval: Option<u32>,
    auto_delete_interval: Option<i64>,
    ephemeral: Option<bool>,
    network_block_all: Option<bool>,
    network_allow_list: Option<Vec<String>>,
    domain_allow_list: Option<Vec<String>>,
    target: Option<String>,
}

/// A volume of the service.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeOption {
    volume_id: String,
    mount_path: String,
    subpath: Option<String>,
}

/// The body, but for named volumes, whose ids must be asked for.
pub(crate) struct Wanted {
    pub(crate) body: Map<String, Value>,
    /// Name and mount path of named volumes.
    pub(crate) named: Vec<(String, String)>,
}

const GIB_MIB: u64 = 1024;

/// Checks a spec and words it as the service does.
///
/// # Errors
/// `InvalidInput`, naming the field.
pub(crate) fn wanted(spec: &SandboxSpec, config: &CreateConfig, target: Option<&str>, nonce: &str) -> Result<Wanted> {
    let options: Options = from_json(Value::Object(spec.provider_options.clone()), "provider_options")?;
    let invalid = SandboxError::invalid_input;
    let mut body = Map::new();
    let mut set = |key: &str, value: Value| drop(body.insert(key.to_owned(), value));

    let language = options.language.as_deref().unwrap_or(&config.language);
    check_language("provider_options.language", language)?;
    set("name", format!("sandbox-{nonce}").into());
    set("labels", json!(labels(spec, nonce, language)?));
    match (&spec.image, options.snapshot.as_ref()) {
        (Some(_), Some(_)) => {
            return Err(invalid(
                "provider_options.snapshot",
                "cannot be together with an image: leave one of them out",
            ));
        }
        (Some(image), None) => set("buildInfo", json!({"dockerfileContent": format!("FROM {image}\n")})),
        (None, snapshot) => {
            check_no_resources(spec)?;
            if let Some(snapshot) = snapshot.or(config.snapshot.as_ref()) {
                set("snapshot", snapshot.as_str().into());
            }
        }
    }
    let resources = &spec.resources;
    if let Some(cpu) = resources.cpu {
        set("cpu", (cpu.ceil() as u64).into());
    }
    if let Some(memory) = resources.memory_mib {
        set("memory", memory.div_ceil(GIB_MIB).into());
    }
    if let Some(disk) = resources.disk_gib {
        set("disk", disk.into());
    }
    if let Some(gpu) = resources.gpu {
        set("gpu", gpu.into());
    }
    if let Some(kinds) = &resources.gpu_type {
        set("gpuType", kinds.split(',').map(|kind| kind.trim().to_owned()).collect::<Vec<_>>().into());
    }
    if let Some(user) = spec.user.as_ref().or(config.os_user.as_ref()) {
        set("user", user.as_str().into());
    }
    // What is no text, or has no name for the service, is set inside.
    let env: Map<String, Value> = spec
        .env
        .iter()
        .filter(|(name, _)| is_plain_name(name))
        .filter_map(|(name, value)| Some((name.to_owned(), value.as_str()?.into())))
        .collect();
    if !env.is_empty() {
        set("env", env.into());
    }
    set("public", options.public.unwrap_or(config.public).into());
    set_times(spec, &options, config, &mut set)?;
    let block = options.network_block_all.unwrap_or(config.network_block_all);
    set("networkBlockAll", (block || spec.network == Some(NetworkMode::None)).into());
    let list = options.network_allow_list.as_ref().unwrap_or(&config.network_allow_list);
    check_allow_list("provider_options.network_allow_list", list)?;
    if !list.is_empty() {
        set("networkAllowList", list.join(",").into());
    }
    if let Some(domains) = &options.domain_allow_list {
        if domains.len() > 10 || domains.iter().any(|name| name.is_empty() || name.contains([',', ' '])) {
            return Err(invalid("provider_options.domain_allow_list", "must be at most 10 host names"));
        }
        set("domainAllowList", domains.join(",").into());
    }
    if let Some(target) = options.target.as_deref().or(target) {
        set("target", target.into());
    }
    let (volumes, named) = volumes(spec, &options.volumes)?;
    if !volumes.is_empty() {
        set("volumes", volumes.into());
    }
    Ok(Wanted { body, named })
}

/// Whether the service takes this name of a variable.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.starts_with(|c: char| is_part(c) && !c.is_ascii_digit()) && name.chars().all(is_part)
}

/// With a snapshot the service sizes the sandbox itself.
fn check_no_resources(spec: &SandboxSpec) -> Result<()> {
    let resources = &spec.resources;
    for (field, is_set) in [
        ("resources.cpu", resources.cpu.is_some()),
        ("resources.memory_mib", resources.memory_mib.is_some()),
        ("resources.disk_gib", resources.disk_gib.is_some()),
        ("resources.gpu", resources.gpu.is_some()),
        ("resources.gpu_type", resources.gpu_type.is_some()),
    ] {
        if is_set {
            return Err(SandboxError::invalid_input(field, "the service takes it together with an image only")
                .with_help("set an image, or make a snapshot of the wanted size"));
        }
    }
    Ok(())
}

fn set_times(
    spec: &SandboxSpec,
    options: &Options,
    config: &CreateConfig,
    set: &mut impl FnMut(&str, Value),
) -> Result<()> {
    set("autoStopInterval", options.auto_stop_interval.unwrap_or(config.auto_stop_interval).into());
    if let Some(minutes) = options.auto_archive_interval.or(config.auto_archive_interval) {
        set("autoArchiveInterval", minutes.into());
    }
    let delete = options.auto_delete_interval.or(config.auto_delete_interval);
    if options.ephemeral.unwrap_or(config.ephemeral) {
        if delete.is_some_and(|minutes| minutes != 0) {
            let text = "cannot be together with ephemeral, which means 0";
            return Err(SandboxError::invalid_input("provider_options.auto_delete_interval", text));
        }
        set("autoDeleteInterval", 0.into());
    } else if let Some(minutes) = delete {
        set("autoDeleteInterval", minutes.into());
    }
    if let Some(ttl) = spec.ttl_s {
        set("ttlMinutes", minutes(ttl).into());
    }
    Ok(())
}

/// Whole minutes, at least as long.
pub(crate) fn minutes(seconds: f64) -> u64 {
    (seconds / 60.0).ceil().max(1.0) as u64
}

type Volumes = (Vec<Value>, Vec<(String, String)>);

fn volumes(spec: &SandboxSpec, options: &[VolumeOption]) -> Result<Volumes> {
    let mut volumes = Vec::new();
    for (index, volume) in options.iter().enumerate() {
        let field = format!("provider_options.volumes[{index}]");
        if volume.volume_id.is_empty() || !volume.mount_path.starts_with('/') {
            return Err(SandboxError::invalid_input(field, "needs a volume_id and an absolute mount_path"));
        }
        let mut value = json!({"volumeId": volume.volume_id, "mountPath": volume.mount_path});
        if let Some(subpath) = &volume.subpath {
            value["subpath"] = subpath.as_str().into();
        }
        volumes.push(value);
    }
    let mut named = Vec::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        if volume.read_only {
            let text = "the service mounts volumes for writing only";
            return Err(SandboxError::invalid_input(format!("volumes[{index}].read_only"), text));
        }
        if let VolumeSource::Named(name) = &volume.source {
            named.push((name.clone(), volume.target.clone()));
        }
    }
    Ok((volumes, named))
}

#[cfg(test)]
mod tests {
    use sandbox_core::{SandboxResources, SandboxSpec};
    use serde_json::{Value, json};

    use super::{minutes, wanted};
    use crate::config::CreateConfig;

    fn body(spec: &SandboxSpec) -> Value {
        Value::Object(wanted(spec, &CreateConfig::default(), None, "n").unwrap().body)
    }

    fn field(spec: &SandboxSpec) -> String {
        let error = wanted(spec, &CreateConfig::default(), None, "n").err().expect("it is refused");
        error.field().unwrap_or_default().to_owned()
    }

    fn with_options(options: Value) -> SandboxSpec {
        SandboxSpec::from_json(json!({"provider_options": options})).unwrap()
    }

    #[test]
    fn sizes_are_rounded_up_to_what_the_service_takes() {
        let mut spec = SandboxSpec::image("debian:12");
        let sizes =
            SandboxResources { cpu: Some(1.2), memory_mib: Some(2049), disk_gib: Some(5), ..Default::default() };
        spec.resources = sizes;
        let body = body(&spec);
        assert_eq!((&body["cpu"], &body["memory"], &body["disk"]), (&json!(2), &json!(3), &json!(5)));
        assert_eq!(body["buildInfo"]["dockerfileContent"], "FROM debian:12\n");
    }

    #[test]
    fn the_settings_hold_where_the_options_say_nothing() {
        let mut config = CreateConfig {
            language: "typescript".to_owned(),
            os_user: Some("daytona".to_owned()),
            public: true,
            auto_stop_interval: 30,
            auto_archive_interval: Some(60),
            auto_delete_interval: Some(600),
            network_block_all: true,
            network_allow_list: vec!["10.0.0.0/8".to_owned(), "192.168.1.1/32".to_owned()],
            snapshot: Some("ours".to_owned()),
            ..CreateConfig::default()
        };
        let made = |spec: &SandboxSpec, config: &CreateConfig| wanted(spec, config, Some("us"), "n").unwrap().body;
        let body = Value::Object(made(&SandboxSpec::default().with_metadata("k", "v"), &config));
        for (key, value) in [
            ("name", json!("sandbox-n")),
            ("user", json!("daytona")),
            ("public", json!(true)),
            ("autoStopInterval", json!(30)),
            ("autoArchiveInterval", json!(60)),
            ("autoDeleteInterval", json!(600)),
            ("networkBlockAll", json!(true)),
            ("networkAllowList", json!("10.0.0.0/8,192.168.1.1/32")),
            ("snapshot", json!("ours")),
            ("target", json!("us")),
        ] {
            assert_eq!(body[key], value, "{key}");
        }
        assert_eq!(
            (&body["labels"]["k"], &body["labels"]["code-toolbox-language"]),
            (&json!("v"), &json!("typescript"))
        );

        let mut spec = with_options(json!({
            "language": "javascript", "public": false, "auto_stop_interval": 0, "auto_archive_interval": 5,
            "auto_delete_interval": -1, "network_block_all": false, "network_allow_list": [], "target": "eu",
        }));
        (spec.user, spec.image) = (Some("root".to_owned()), Some("debian:12".to_owned()));
        let body = Value::Object(made(&spec, &config));
        for (key, value) in [
            ("user", json!("root")),
            ("public", json!(false)),
            ("autoStopInterval", json!(0)),
            ("autoArchiveInterval", json!(5)),
            ("autoDeleteInterval", json!(-1)),
            ("networkBlockAll", json!(false)),
            ("networkAllowList", Value::Null),
            ("snapshot", Value::Null),
            ("target", json!("eu")),
        ] {
            assert_eq!(body[key], value, "{key}");
        }
        assert_eq!(body["labels"]["code-toolbox-language"], "javascript");
        (config.ephemeral, config.auto_delete_interval) = (true, None);
        assert_eq!(made(&SandboxSpec::default(), &config)["autoDeleteInterval"], 0);
    }

    #[test]
    fn defect_05_resources_without_an_image_are_refused_by_name() {
        let spec = SandboxSpec::from_json(json!({"resources": {"memory_mib": 512}})).unwrap();
        assert_eq!(field(&spec), "resources.memory_mib");
    }

    #[test]
    fn defect_06_the_ttl_becomes_the_services_and_idleness_stops_nothing() {
        let body = body(&SandboxSpec::default().with_ttl_s(61.0));
        assert_eq!((&body["ttlMinutes"], &body["autoStopInterval"]), (&json!(2), &json!(0)));
        assert_eq!([minutes(0.5), minutes(60.0), minutes(60.1)], [1, 1, 2]);
    }

    #[test]
    fn defect_15_what_the_service_would_refuse_is_refused_first() {
        for (options, name) in [
            (json!({"volumes": [{"name": "x"}]}), "provider_options.volumes[0].name"),
            (json!({"volumes": [{"volume_id": "v", "mount_path": "rel"}]}), "provider_options.volumes[0]"),
            (json!({"language": "go"}), "provider_options.language"),
            (json!({"network_allow_list": ["github.com"]}), "provider_options.network_allow_list"),
            (json!({"network_allow_list": ["10.0.0.1"]}), "provider_options.network_allow_list"),
            (json!({"ephemeral": true, "auto_delete_interval": 5}), "provider_options.auto_delete_interval"),
            (json!({"no_such": 1}), "no_such"),
        ] {
            let found = field(&with_options(options));
            assert!(found == name || name.ends_with(&found), "{found} is not {name}");
        }
        let mut spec = with_options(json!({"snapshot": "s"}));
        spec.image = Some("debian".to_owned());
        assert_eq!(field(&spec), "provider_options.snapshot");
        let spec = SandboxSpec::default().with_metadata("sandbox.owner", "me");
        assert_eq!(field(&spec), "metadata.sandbox.owner");
    }
}
