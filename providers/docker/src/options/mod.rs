//! What a spec can say in `provider_options`: the keys of a compose document that a spec has no field for, in the same
//! form, and a few of our own.

mod forms;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use sandbox_core::{Result, SandboxError, SandboxSpec, VolumeMount, from_json, serde_json::Value};
use serde::Deserialize;

pub(crate) use self::forms::Ulimit;
use crate::config::{DockerConfig, PullPolicy, is_platform};

/// The options that a compose document can need, as the provider's info lists them.
pub(crate) const OPTIONS: [&str; 29] = [
    "aliases",
    "cpu_period",
    "cpu_quota",
    "cpu_shares",
    "cpuset",
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "external_volumes",
    "hostname",
    "init",
    "ipc",
    "mem_reservation",
    "memswap_limit",
    "network_addresses",
    "oom_score_adj",
    "pid",
    "platform",
    "published_ports",
    "pull_policy",
    "read_only",
    "runtime",
    "security_opt",
    "storage_opt",
    "sysctls",
    "ulimits",
    "userns_mode",
    "uts",
];

/// Those that are as good as root on the engine's machine: only with `allow_privileged`.
pub(crate) const STRONG_OPTIONS: [&str; 3] = ["cgroup_parent", "device_cgroup_rules", "devices"];

/// Options of this provider. Every key has a default; an unknown one is refused.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DockerOptions {
    /// Further volumes, in the form of the spec's own.
    pub(crate) volumes: Vec<VolumeMount>,
    /// Volumes of the spec that must be there already; without this the engine makes what it does not know.
    #[serde(deserialize_with = "forms::words")]
    pub(crate) external_volumes: Vec<String>,
    /// Further names of this sandbox on its network; only on a named one.
    pub(crate) aliases: Vec<String>,
    /// Fixed addresses by network: the spec's, and those that are attached later.
    pub(crate) network_addresses: BTreeMap<String, Ipv4Addr>,
    /// Ports with the place where they are published. Those of the spec's `ports` that are not here are published
    /// wherever there is room.
    pub(crate) published_ports: Vec<PublishedPort>,
    /// The runtime of the engine, such as `runsc`.
    pub(crate) runtime: Option<String>,
    /// The host name inside. Default: the spec's name, else the id.
    #[serde(deserialize_with = "forms::word")]
    pub(crate) hostname: Option<String>,
    /// The domain of the host name.
    #[serde(deserialize_with = "forms::word")]
    pub(crate) domainname: Option<String>,
    /// Name servers.
    #[serde(deserialize_with = "forms::words")]
    pub(crate) dns: Vec<String>,
    /// Options of the name resolver, such as `ndots:1`.
    #[serde(deserialize_with = "forms::words")]
    pub(crate) dns_opt: Vec<String>,
    /// Domains in which short names are looked for.
    #[serde(deserialize_with = "forms::words")]
    pub(crate) dns_search: Vec<String>,
    /// When the image is pulled: `always`, `if_missing` (also `missing`, `if_not_present`) or `never`.
    pub(crate) pull_policy: Option<PullPolicy>,
    /// Platform of the image, such as `linux/arm64`.
    pub(crate) platform: Option<String>,
    /// Whether the root can only be read. The provider's settings can demand it, too.
    #[serde(deserialize_with = "forms::switch")]
    pub(crate) read_only: bool,
    /// Whether the first process reaps children that lost their parent. It always does.
    #[serde(deserialize_with = "forms::switch")]
    pub(crate) init: bool,
    /// Processors that may be used, such as `0-2`.
    #[serde(deserialize_with = "forms::word")]
    pub(crate) cpuset: Option<String>,
    /// Share of the processors when they are short; 2 to 262144.
    #[serde(deserialize_with = "forms::whole")]
    pub(crate) cpu_shares: Option<i64>,
    /// Microseconds of a period. Not with `resources.cpu`.
    #[serde(deserialize_with = "forms::whole")]
    pub(crate) cpu_period: Option<i64>,
    /// Microseconds of processor in a period. Not with `resources.cpu`.
    #[serde(deserialize_with = "forms::whole")]
    pub(crate) cpu_quota: Option<i64>,
    /// Memory that is kept when it is short, in bytes or with a unit.
    #[serde(deserialize_with = "forms::bytes")]
    pub(crate) mem_reservation: Option<i64>,
    /// Memory and swap together, in bytes or with a unit; -1: no limit of swap. Only with `resources.memory_mib`.
    #[serde(deserialize_with = "forms::bytes")]
    pub(crate) memswap_limit: Option<i64>,
    /// Which processes go first when memory is short; -1000 to 1000.
    #[serde(deserialize_with = "forms::whole")]
    pub(crate) oom_score_adj: Option<i64>,
    /// Limits of each process, such as `{"nofile": 4096}` or `{"nofile": {"soft": 1024, "hard": 4096}}`.
    pub(crate) ulimits: BTreeMap<String, Ulimit>,
    /// Settings of the kernel, such as `{"net.core.somaxconn": 1024}`.
    #[serde(deserialize_with = "forms::pairs")]
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Options of the engine's storage driver, such as `{"size": "10G"}`.
    #[serde(deserialize_with = "forms::pairs")]
    pub(crate) storage_opt: BTreeMap<String, String>,
    /// Security options in the engine's own form.
    #[serde(deserialize_with = "forms::words")]
    pub(crate) security_opt: Vec<String>,
    /// `private`, `none`, `shareable`, or `host`.
    pub(crate) ipc: Option<String>,
    /// `host`.
    pub(crate) pid: Option<String>,
    /// `host`.
    pub(crate) uts: Option<String>,
    /// `host`.
    pub(crate) userns_mode: Option<String>,
    /// Devices of the engine's machine: `/dev/x`, `/dev/x:/dev/y` or `/dev/x:/dev/y:rwm`.
    #[serde(deserialize_with = "forms::words")]
    pub(crate) devices: Vec<String>,
    /// Rules for devices, such as `c 1:3 mr`.
    #[serde(deserialize_with = "forms::words")]
    pub(crate) device_cgroup_rules: Vec<String>,
    /// The control group under which the engine makes the sandbox's.
    pub(crate) cgroup_parent: Option<String>,
}

/// A port and where it is published.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedPort {
    /// The port inside.
    pub(crate) target: u16,
    /// The port of the host, a range such as `8000-8010`, or `0` for any.
    #[serde(default)]
    pub(crate) published: String,
    /// The address of the host. Default: that of the settings.
    #[serde(default)]
    pub(crate) host_ip: Option<IpAddr>,
    /// `tcp` or `udp`.
    #[serde(default)]
    pub(crate) protocol: Protocol,
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    #[default]
    Tcp,
    Udp,
}

impl Protocol {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

fn invalid<T>(key: &str, why: &str) -> Result<T> {
    Err(SandboxError::invalid_input(format!("provider_options.{key}"), why))
}

fn is_word(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty() && text.len() <= 63 && text.chars().all(fits)
}

impl DockerOptions {
    /// Reads and checks the options of a spec.
    pub(crate) fn of(spec: &SandboxSpec, config: &DockerConfig) -> Result<Self> {
        let options: Self = from_json(Value::Object(spec.provider_options.clone()), "provider_options")?;
        options.names()?;
        options.limits(spec)?;
        options.strong(config)?;
        // The spec's own check knows what a volume must be.
        let probe = {
            let mut probe = SandboxSpec::default();
            probe.volumes = options.volumes.clone();
            probe
        };
        probe.validate().map_err(|error| error.context("provider_options"))?;
        Ok(options)
    }

    fn names(&self) -> Result<()> {
        let words = [("runtime", &self.runtime), ("hostname", &self.hostname), ("domainname", &self.domainname)];
        for (key, value) in words {
            if value.as_deref().is_some_and(|text| !is_word(text)) {
                return invalid(key, "must be 1 to 63 of a-z A-Z 0-9 . _ -");
            }
        }
        if self.aliases.iter().any(|alias| !is_word(alias)) {
            return invalid("aliases", "must each be 1 to 63 of a-z A-Z 0-9 . _ -");
        }
        if self.dns.iter().any(|server| server.parse::<IpAddr>().is_err()) {
            return invalid("dns", "must be addresses of name servers");
        }
        let is_plain = |text: &String| !text.is_empty() && !text.contains(char::is_whitespace);
        for (key, list) in [("dns_opt", &self.dns_opt), ("dns_search", &self.dns_search)] {
            if !list.iter().all(is_plain) {
                return invalid(key, "must be words without spaces");
            }
        }
        if self.platform.as_deref().is_some_and(|platform| !is_platform(platform)) {
            return invalid("platform", "must be os/architecture[/variant], such as linux/amd64");
        }
        for port in &self.published_ports {
            let number = |text: &str| text.parse::<u16>().is_ok();
            let is_port = match port.published.split_once('-') {
                Some((first, last)) => number(first) && number(last),
                None => port.published.is_empty() || number(&port.published),
            };
            if port.target == 0 || !is_port {
                return invalid(
                    "published_ports",
                    "must be {target, published, host_ip, protocol} with ports to 65535",
                );
            }
        }
        Ok(())
    }

    fn limits(&self, spec: &SandboxSpec) -> Result<()> {
        let is_cpuset = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || ",-".contains(c));
        if self.cpuset.as_deref().is_some_and(|text| !is_cpuset(text)) {
            return invalid("cpuset", "must be processors such as 0-2,4");
        }
        for (name, Ulimit { soft, hard }) in &self.ulimits {
            let is_within = *hard == -1 || (*soft != -1 && soft <= hard);
            if name.is_empty() || !is_within {
                return invalid("ulimits", "the soft limit must not be above the hard one");
            }
        }
        if spec.resources.cpu.is_some() && (self.cpu_period.is_some() || self.cpu_quota.is_some()) {
            return invalid("cpu_quota", "says what resources.cpu says already: leave one out");
        }
        if self.memswap_limit.is_some() && spec.resources.memory_mib.is_none() {
            return invalid("memswap_limit", "needs a limit of the memory: resources.memory_mib");
        }
        if self.oom_score_adj.is_some_and(|adjustment| !(-1000..=1000).contains(&adjustment)) {
            return invalid("oom_score_adj", "must be -1000 to 1000");
        }
        if self.storage_opt.keys().any(|key| key != "size") {
            return invalid("storage_opt", "the engine's drivers have only size");
        }
        if self.storage_opt.contains_key("size") && spec.resources.disk_gib.is_some() {
            return invalid("storage_opt", "says what resources.disk_gib says already: leave one out");
        }
        Ok(())
    }

    /// What is as good as root on the engine's machine is up to the settings.
    fn strong(&self, config: &DockerConfig) -> Result<()> {
        let modes: [(&str, &Option<String>, &[&str]); 4] = [
            ("ipc", &self.ipc, &["private", "none", "shareable"]),
            ("pid", &self.pid, &[]),
            ("uts", &self.uts, &[]),
            ("userns_mode", &self.userns_mode, &[]),
        ];
        let refused = |key: &str| {
            let why = "the settings do not allow it (allow_privileged)";
            Err(SandboxError::unsupported_field(crate::error::NAME, format!("provider_options.{key}"), why))
        };
        for (key, value, others) in modes {
            match value.as_deref() {
                None => {}
                Some("host") if config.allow_privileged => {}
                Some("host") => return refused(key),
                Some(value) if others.contains(&value) => {}
                Some(_) => {
                    let known: Vec<&str> = others.iter().copied().chain(["host"]).collect();
                    return invalid(key, &format!("must be one of: {}", known.join(", ")));
                }
            }
        }
        let takes_away = |option: &String| option.contains("unconfined") || option.contains("disable");
        for (key, is_used) in [
            ("cgroup_parent", self.cgroup_parent.is_some()),
            ("device_cgroup_rules", !self.device_cgroup_rules.is_empty()),
            ("devices", !self.devices.is_empty()),
            ("security_opt", self.security_opt.iter().any(takes_away)),
            ("oom_score_adj", self.oom_score_adj.is_some_and(|adjustment| adjustment < 0)),
        ] {
            if is_used && !config.allow_privileged {
                return refused(key);
            }
        }
        for option in &self.security_opt {
            let key = option.split([':', '=']).next().unwrap_or_default();
            if ["seccomp", "no-new-privileges"].contains(&key) {
                return invalid("security_opt", "seccomp and no-new-privileges are fields of the spec: security");
            }
            if config.security_opt.iter().any(|own| own.split([':', '=']).next() == Some(key)) {
                return invalid("security_opt", "the provider's settings say it already");
            }
        }
        if self.devices.iter().any(|device| !device.starts_with('/') || device.split(':').count() > 3) {
            return invalid("devices", "must be /dev/x, /dev/x:/dev/y or /dev/x:/dev/y:rwm");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, SandboxSpec, serde_json::json};

    use super::{DockerOptions, OPTIONS, STRONG_OPTIONS};
    use crate::config::DockerConfig;

    fn read(options: serde_json::Value, config: &DockerConfig) -> sandbox_core::Result<DockerOptions> {
        let mut spec = SandboxSpec::image("x");
        spec.provider_options = options.as_object().unwrap().clone();
        DockerOptions::of(&spec, config)
    }

    #[test]
    fn the_forms_of_a_compose_document_are_read() {
        let options = json!({
            "dns": "9.9.9.9", "dns_search": ["a.b"], "init": "true", "read_only": true, "hostname": 7,
            "ulimits": {"nofile": "1024", "nproc": {"soft": 5, "hard": -1}}, "sysctls": ["net.core.somaxconn=9"],
            "mem_reservation": "64m", "pull_policy": "missing", "cpuset": 0,
            "published_ports": [{"target": 80, "published": "0", "host_ip": null, "protocol": "udp"}],
        });
        let options = read(options, &DockerConfig::default()).unwrap();
        assert_eq!((options.dns[0].as_str(), options.hostname.as_deref()), ("9.9.9.9", Some("7")));
        assert_eq!((options.ulimits["nofile"].hard, options.ulimits["nproc"].hard), (1024, -1));
        assert_eq!((options.sysctls["net.core.somaxconn"].as_str(), options.mem_reservation), ("9", Some(64 << 20)));
        assert!(options.init && options.read_only);
    }

    #[test]
    fn a_bad_value_and_an_unknown_key_are_refused_by_name() {
        let default = DockerConfig::default();
        for (options, field) in [
            (json!({"ulimits": {"nofile": {"soft": 9, "hard": 5}}}), "provider_options.ulimits"),
            (json!({"dns": ["example.org"]}), "provider_options.dns"),
            (json!({"published_ports": [{"target": 80, "published": "99999"}]}), "provider_options.published_ports"),
            (json!({"ipc": "service:a"}), "provider_options.ipc"),
            (json!({"memswap_limit": "1g"}), "provider_options.memswap_limit"),
            (json!({"security_opt": ["seccomp=x"]}), "provider_options.security_opt"),
        ] {
            let error = read(options, &default).unwrap_err();
            assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(field)), "{error}");
        }
        let error = read(json!({"pull": "always"}), &default).unwrap_err();
        assert!(
            error.help().is_some_and(|help| help.contains("did you mean")) || error.message().contains("pull_policy")
        );
    }

    #[test]
    fn what_is_as_good_as_root_needs_the_settings() {
        let (mut open, default) = (DockerConfig::default(), DockerConfig::default());
        open.allow_privileged = true;
        for options in [
            json!({"pid": "host"}),
            json!({"ipc": "host"}),
            json!({"devices": ["/dev/kvm"]}),
            json!({"cgroup_parent": "/x"}),
            json!({"security_opt": ["apparmor=unconfined"]}),
        ] {
            let error = read(options.clone(), &default).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{options}");
            read(options, &open).unwrap();
        }
    }

    #[test]
    fn every_listed_option_is_known() {
        for option in OPTIONS.iter().chain(&STRONG_OPTIONS) {
            let error = read(json!({ *option: {"no": ["such", "form"]} }), &DockerConfig::default()).unwrap_err();
            // An unknown key is told at itself, a wrong value in it or at what is below.
            let is_unknown = error.message().contains("unknown key") && error.field() == Some(*option);
            assert!(!is_unknown, "{option}: {error}");
        }
    }
}
