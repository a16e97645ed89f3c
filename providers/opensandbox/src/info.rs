//! What this provider honours.

use sandbox_core::{Field, ProviderInfo};

use crate::{
    config::{NativeSetting, OpenSandboxConfig},
    error::NAME,
};

const HONOURED: [Field; 19] = [
    Field::Image,
    Field::Name,
    Field::TtlS,
    Field::ReadyTimeoutS,
    Field::Env,
    Field::Metadata,
    Field::Cpu,
    Field::MemoryMib,
    Field::DiskGib,
    Field::Gpu,
    Field::GpuType,
    Field::Entrypoint,
    Field::ProviderOptions,
    Field::Ports,
    Field::VolumesBind,
    Field::VolumesNamed,
    Field::ExecEnv,
    Field::ExecCwd,
    Field::ExecTimeoutS,
];

const EMULATED: [(Field, &str); 2] = [
    (Field::Workdir, "made after the start, and sent with each command"),
    (Field::ExtraHosts, "added to /etc/hosts after the start"),
];

/// What the agent does, and the daemon's own API does not: with `operations.native = "required"` it is honoured.
const EMULATED_WITHOUT_AGENT: [(Field, &str); 3] = [
    (Field::ExecIdleTimeoutS, "watched from here"),
    (Field::ExecKillGraceS, "SIGTERM, then SIGKILL: by the daemon after 3 s, sooner only by ours"),
    (Field::ExecStdinBytes, "through a file that is removed afterwards"),
];

const NO_KERNEL: &str = "the server decides it for all of its sandboxes";

const REFUSED_WITHOUT_AGENT: [(Field, &str); 2] = [
    (
        Field::ExecStdinStream,
        "set operations.native = \"required\": the API of execd gives commands no input while they run",
    ),
    (Field::ExecSignal, "set operations.native = \"required\": the API of execd can only end a command"),
];

const REFUSED: [(Field, &str); 12] = [
    (Field::Pids, NO_KERNEL),
    (Field::Sidecars, "an OpenSandbox sandbox is one container"),
    (Field::VolumesTmpfs, "the server mounts no memory"),
    (Field::NetworkNone, "use provider_options.network_policy, where the server has its egress sidecar"),
    (Field::NetworkHost, NO_KERNEL),
    (Field::NetworkNamed, "the server has no networks by name"),
    (Field::ShmSizeMib, "see the settings runtime_requirements"),
    (Field::CapAdd, NO_KERNEL),
    (Field::CapDrop, NO_KERNEL),
    (Field::SeccompProfile, NO_KERNEL),
    (Field::NoNewPrivs, NO_KERNEL),
    (Field::Privileged, NO_KERNEL),
];

pub(crate) fn info(config: &OpenSandboxConfig) -> ProviderInfo {
    let mut info = ProviderInfo::new(NAME)
        .with_isolation("container")
        .honours(HONOURED)
        .honours([Field::User, Field::ExecUser])
        .with_detail("exec", if config.operations.background_exec { "background" } else { "foreground" })
        .with_detail("access", if config.connection.use_server_proxy { "through the server" } else { "direct" });
    info = info.with_detail("native", config.operations.native.as_str());
    for (field, how) in EMULATED {
        info = info.emulates(field, how);
    }
    if config.operations.native == NativeSetting::Required {
        info = info.honours(EMULATED_WITHOUT_AGENT.map(|(field, _)| field));
        info = info.honours(REFUSED_WITHOUT_AGENT.map(|(field, _)| field));
    } else {
        for (field, how) in EMULATED_WITHOUT_AGENT {
            info = info.emulates(field, how);
        }
        for (field, why) in REFUSED_WITHOUT_AGENT {
            info = info.refuses(field, why);
        }
    }
    for (field, why) in REFUSED {
        info = info.refuses(field, why);
    }
    info
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Field, FieldSupport, ProviderInfo};

    use super::info;
    use crate::config::{NativeSetting, OpenSandboxConfig};

    #[test]
    fn every_field_is_honoured_emulated_or_refused_with_a_reason() {
        let mut required = OpenSandboxConfig::default();
        required.operations.native = NativeSetting::Required;
        for config in [OpenSandboxConfig::default(), required] {
            let info = info(&config);
            every_field(&info);
        }
    }

    fn every_field(info: &ProviderInfo) {
        for field in Field::ALL {
            match info.fields.get(field.as_str()) {
                None => panic!("{field} is not listed"),
                Some(FieldSupport::Refused(why) | FieldSupport::Emulated(why)) => assert!(why.len() > 10, "{field}"),
                Some(_) => {}
            }
        }
    }
}
