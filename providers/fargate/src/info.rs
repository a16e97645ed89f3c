//! What this provider honours.

use sandbox_core::{Field, FieldSupport, ProviderInfo};

use crate::{
    config::{FargateConfig, TransportKind},
    error::NAME,
    options::OPTIONS,
};

const HONOURED: [Field; 22] = [
    Field::Image,
    Field::Name,
    Field::TtlS,
    Field::ReadyTimeoutS,
    Field::Workdir,
    Field::Env,
    Field::Metadata,
    Field::ProviderOptions,
    Field::Ports,
    Field::User,
    Field::Entrypoint,
    Field::NoNewPrivs,
    Field::ExtraHosts,
    Field::ExecEnv,
    Field::ExecCwd,
    Field::ExecUser,
    Field::ExecTimeoutS,
    Field::ExecIdleTimeoutS,
    Field::ExecKillGraceS,
    Field::ExecStdinBytes,
    Field::ExecStdinStream,
    Field::ExecSignal,
];

pub(crate) fn info(config: &FargateConfig, region: &str) -> ProviderInfo {
    let transport = match config.transport {
        TransportKind::Ssh => "ssh: through the sidecar",
        TransportKind::Direct => "direct: by the task's address",
    };
    let pair = "rounded up to a pair of cores and memory that AWS has";
    let network = "a task has the network of its subnet: see security groups";
    let mut info = ProviderInfo::new(NAME)
        .with_isolation("microvm")
        .honours(HONOURED)
        .emulates(Field::Cpu, pair)
        .emulates(Field::MemoryMib, pair)
        .emulates(Field::DiskGib, "at least 20 GiB, which every task has; at most 200")
        .refuses(Field::Gpu, "Fargate has none")
        .refuses(Field::GpuType, "Fargate has none")
        .refuses(Field::Pids, "Fargate has no such limit")
        .refuses(Field::Sidecars, "a task has the sandbox and what serves it")
        .refuses(Field::VolumesBind, "a task has no host whose folders could be mounted")
        .refuses(Field::VolumesTmpfs, "Fargate mounts no memory")
        .refuses(Field::NetworkNone, network)
        .refuses(Field::NetworkHost, network)
        .refuses(Field::NetworkNamed, network)
        .refuses(Field::ShmSizeMib, "Fargate does not let it be chosen")
        .refuses(Field::CapAdd, "Fargate gives none but SYS_PTRACE")
        .refuses(Field::CapDrop, "the agent needs those that Fargate gives")
        .refuses(Field::SeccompProfile, "Fargate has its own")
        .refuses(Field::Privileged, "Fargate allows none")
        .with_detail("region", region)
        .with_detail("transport", transport);
    info = match config.volumes.is_empty() {
        true => info.refuses(Field::VolumesNamed, "the setting volumes names no file system"),
        false => info.honours([Field::VolumesNamed]),
    };
    info.fields.extend(OPTIONS.map(|option| (format!("provider_options.{option}"), FieldSupport::Honoured)));
    info
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Field, FieldSupport};

    use super::info;
    use crate::config::FargateConfig;

    #[test]
    fn every_field_is_honoured_emulated_or_refused_with_a_reason() {
        let info = info(&FargateConfig::default(), "r");
        for field in Field::ALL {
            match info.fields.get(field.as_str()) {
                None => panic!("{field} is not listed"),
                Some(FieldSupport::Refused(why)) => assert!(why.len() > 10, "{field}"),
                Some(_) => {}
            }
        }
    }
}
