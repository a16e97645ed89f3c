//! What this provider honours.

use sandbox_core::{Field, FieldSupport, ProviderInfo};

use crate::{
    config::{AgentMode, DockerConfig},
    error::NAME,
    options::{OPTIONS, STRONG_OPTIONS},
};

const HONOURED: [Field; 35] = [
    Field::Image,
    Field::Name,
    Field::TtlS,
    Field::ReadyTimeoutS,
    Field::Workdir,
    Field::Env,
    Field::Metadata,
    Field::Cpu,
    Field::MemoryMib,
    Field::Pids,
    Field::ProviderOptions,
    Field::Ports,
    Field::Sidecars,
    Field::User,
    Field::VolumesBind,
    Field::VolumesNamed,
    Field::VolumesTmpfs,
    Field::NetworkNone,
    Field::NetworkHost,
    Field::NetworkNamed,
    Field::ShmSizeMib,
    Field::CapAdd,
    Field::CapDrop,
    Field::SeccompProfile,
    Field::NoNewPrivs,
    Field::Privileged,
    Field::ExtraHosts,
    Field::ExecEnv,
    Field::ExecCwd,
    Field::ExecUser,
    Field::ExecTimeoutS,
    Field::ExecIdleTimeoutS,
    Field::ExecStdinBytes,
    Field::ExecStdinStream,
    Field::ExecSignal,
];

pub(crate) fn info(config: &DockerConfig) -> ProviderInfo {
    let disk = "only where the engine's storage driver has a limit for a container; else refused by create";
    let mut info = ProviderInfo::new(NAME)
        .with_isolation("container")
        .honours(HONOURED)
        .honours([Field::Entrypoint, Field::ExecKillGraceS])
        .emulates(Field::DiskGib, disk)
        .emulates(Field::Gpu, "only where the engine has a driver for them; else refused by create")
        .refuses(Field::GpuType, "an engine hands out GPUs by number only")
        .with_detail("engine", config.host().split('@').next_back().unwrap_or_default());
    info.fields.extend(OPTIONS.map(|option| (format!("provider_options.{option}"), FieldSupport::Honoured)));
    let strong = match config.allow_privileged {
        true => FieldSupport::Honoured,
        false => FieldSupport::Refused("the settings do not allow it (allow_privileged)".to_owned()),
    };
    info.fields.extend(STRONG_OPTIONS.map(|option| (format!("provider_options.{option}"), strong.clone())));
    let others = "the agent sets the groups of each command from the image's /etc/group";
    info.fields.insert("provider_options.group_add".to_owned(), FieldSupport::Refused(others.to_owned()));
    // The engine itself does so.
    info.fields.insert("volumes.copy_up".to_owned(), FieldSupport::Honoured);
    if !config.allow_host_network {
        info = info.refuses(Field::NetworkHost, "the settings do not allow it (allow_host_network)");
    }
    if !config.allow_privileged {
        info = info.refuses(Field::Privileged, "the settings do not allow it (allow_privileged)");
    }
    match config.agent {
        AgentMode::Off => info
            .emulates(Field::ExecTimeoutS, "the engine cannot end a command: its processes may live on")
            .emulates(Field::ExecIdleTimeoutS, "the engine cannot end a command: its processes may live on")
            .refuses(Field::ExecKillGraceS, "the engine cannot signal a command")
            .refuses(Field::ExecSignal, "the engine cannot signal a command")
            .refuses(Field::TtlS, "without our agent nothing ends the sandbox from inside")
            .with_detail("agent", "off: commands go through the engine's own exec"),
        AgentMode::Required => info.with_detail("agent", "required"),
        AgentMode::Auto => info
            .with_detail("agent", "auto: where it cannot run, commands go through the engine's own exec (state.via)"),
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Field, FieldSupport};

    use super::info;
    use crate::config::DockerConfig;

    #[test]
    fn every_field_is_honoured_emulated_or_refused_with_a_reason() {
        let info = info(&DockerConfig::default());
        for field in Field::ALL {
            match info.fields.get(field.as_str()) {
                None => panic!("{field} is not listed"),
                Some(FieldSupport::Refused(why)) => assert!(why.len() > 10, "{field}"),
                Some(_) => {}
            }
        }
    }
}
