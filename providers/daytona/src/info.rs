//! What this provider honours.

use sandbox_core::{Field, ProviderInfo};

use crate::{
    config::{DaytonaConfig, ExecMode},
    error::NAME,
};

const HONOURED: [Field; 23] = [
    Field::Image,
    Field::Name,
    Field::ReadyTimeoutS,
    Field::Workdir,
    Field::Env,
    Field::Metadata,
    Field::Cpu,
    Field::MemoryMib,
    Field::DiskGib,
    Field::Gpu,
    Field::GpuType,
    Field::ProviderOptions,
    Field::Ports,
    Field::VolumesNamed,
    Field::NetworkNone,
    Field::ExecEnv,
    Field::ExecCwd,
    Field::ExecTimeoutS,
    Field::ExecIdleTimeoutS,
    Field::ExecKillGraceS,
    Field::ExecStdinBytes,
    Field::ExecStdinStream,
    Field::ExecSignal,
];

const NO_KERNEL: &str = "the service sets how much of the kernel a sandbox may use";

const REFUSED: [(Field, &str); 13] = [
    (Field::Pids, "the service has no limit on processes"),
    (Field::Entrypoint, "the service runs its own main process"),
    (Field::Sidecars, "the service runs one container for each sandbox"),
    (Field::VolumesBind, "the service does not see this machine's files; upload them"),
    (Field::VolumesTmpfs, "the service mounts volumes only"),
    (Field::NetworkHost, "a sandbox runs on a machine of the service"),
    (Field::NetworkNamed, "the service has no networks with names"),
    (Field::ShmSizeMib, "the service sets the size of /dev/shm"),
    (Field::CapAdd, NO_KERNEL),
    (Field::CapDrop, NO_KERNEL),
    (Field::SeccompProfile, NO_KERNEL),
    (Field::NoNewPrivs, NO_KERNEL),
    (Field::Privileged, NO_KERNEL),
];

const DIRECT: &str = "exec_mode direct leaves it to the service, which has no such thing; exec_mode job has it";

pub(crate) fn info(config: &DaytonaConfig) -> ProviderInfo {
    let mut info = ProviderInfo::new(NAME)
        .with_isolation("container")
        .honours(HONOURED)
        .emulates(
            Field::TtlS,
            "the service counts whole minutes, rounded up; while this provider lives it removes the sandbox on time",
        )
        .emulates(Field::User, "a user of the image, by name; everything in the sandbox runs as this user")
        .emulates(Field::ExecUser, "the sandbox's own user; any other where that is root and the image has setpriv")
        .refuses(Field::ExtraHosts, "the service has no way to add names")
        .with_detail("resources", "with an image only, rounded up to whole cores and GiB")
        .with_detail(
            "agent",
            "placed when ports are forwarded, and reached by a terminal; commands need none and outlive connections",
        )
        .with_detail("pause", "machines are frozen; containers are stopped, which ends their processes");
    for (field, why) in REFUSED {
        info = info.refuses(field, why);
    }
    match config.operations.exec_mode {
        ExecMode::Job => info.with_detail("exec", "job: a folder for each command, exact and separate streams"),
        ExecMode::Direct => [
            Field::ExecUser,
            Field::ExecIdleTimeoutS,
            Field::ExecKillGraceS,
            Field::ExecStdinBytes,
            Field::ExecStdinStream,
            Field::ExecSignal,
        ]
        .into_iter()
        .fold(info, |info, field| info.refuses(field, DIRECT))
        .with_detail("exec", "direct: one stream of text, nothing of it after a time limit"),
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Field, FieldSupport};

    use super::info;
    use crate::config::DaytonaConfig;

    #[test]
    fn every_field_is_honoured_emulated_or_refused_with_a_reason() {
        let info = info(&DaytonaConfig::default());
        for field in Field::ALL {
            match info.fields.get(field.as_str()) {
                None => panic!("{field} is not listed"),
                Some(FieldSupport::Refused(why)) => assert!(why.len() > 10, "{field}"),
                Some(_) => {}
            }
        }
    }
}
