//! What this provider honours.

use sandbox_core::{Field, ProviderInfo};

use crate::{config::LocalConfig, error::NAME, user::is_privileged};

const HONOURED: [Field; 17] = [
    Field::Name,
    Field::TtlS,
    Field::ReadyTimeoutS,
    Field::Workdir,
    Field::Env,
    Field::Metadata,
    Field::NetworkHost,
    Field::ExecEnv,
    Field::ExecCwd,
    Field::ExecTimeoutS,
    Field::ExecIdleTimeoutS,
    Field::ExecKillGraceS,
    Field::ExecStdinBytes,
    Field::ExecStdinStream,
    Field::ExecSignal,
    // With root; see `info`.
    Field::User,
    Field::ExecUser,
];

const NO_LIMITS: &str = "isolation none cannot limit it; isolation \"namespaces\" can";
const NO_VIEW: &str = "isolation none has no file system of its own to mount into; use paths of this machine";
const NO_KERNEL: &str = "isolation none runs ordinary processes of this machine";

const REFUSED: [(Field, &str); 23] = [
    (Field::Image, "local runs on this machine's own files; isolation \"namespaces\" takes rootfs:/path"),
    (Field::Cpu, NO_LIMITS),
    (Field::MemoryMib, NO_LIMITS),
    (Field::DiskGib, NO_LIMITS),
    (Field::Pids, NO_LIMITS),
    (Field::Gpu, "isolation none hands out no devices: every GPU of this machine is there already"),
    (Field::GpuType, "isolation none hands out no devices: every GPU of this machine is there already"),
    (Field::Entrypoint, "a local sandbox has no main process"),
    (Field::ProviderOptions, "local has no options of its own"),
    (Field::Ports, "isolation none has no network of its own: a port of the sandbox is a port of this machine"),
    (Field::Sidecars, "local runs no containers"),
    (Field::VolumesBind, NO_VIEW),
    (Field::VolumesNamed, NO_VIEW),
    (Field::VolumesTmpfs, NO_VIEW),
    (Field::NetworkNone, "isolation none cannot cut the network off; isolation \"namespaces\" does"),
    (Field::NetworkNamed, "local has no networks of its own"),
    (Field::ShmSizeMib, NO_VIEW),
    (Field::CapAdd, NO_KERNEL),
    (Field::CapDrop, NO_KERNEL),
    (Field::SeccompProfile, NO_KERNEL),
    (Field::NoNewPrivs, NO_KERNEL),
    (Field::Privileged, NO_KERNEL),
    (Field::ExtraHosts, "isolation none uses this machine's own /etc/hosts"),
];

const OWN_USER_ONLY: &str = "this process is not root: only its own user, by name or number";

pub(crate) fn info(config: &LocalConfig) -> ProviderInfo {
    let mut info = ProviderInfo::new(NAME)
        .with_isolation(config.isolation.clone())
        .honours(HONOURED)
        .with_detail("limits", "commands are processes of this machine, with its files and its network")
        .with_detail("needs", "linux 5.6 or later");
    for (field, why) in REFUSED {
        info = info.refuses(field, why);
    }
    if !is_privileged() {
        info = info.emulates(Field::User, OWN_USER_ONLY).emulates(Field::ExecUser, OWN_USER_ONLY);
    }
    info
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Field, FieldSupport};

    use super::info;
    use crate::config::LocalConfig;

    #[test]
    fn every_field_is_honoured_emulated_or_refused_with_a_reason() {
        let info = info(&LocalConfig { isolation: "none".to_owned(), ..LocalConfig::default() });
        assert_eq!(info.isolation, "none");
        for field in Field::ALL {
            match info.fields.get(field.as_str()) {
                None => panic!("{field} is not listed"),
                Some(FieldSupport::Refused(why)) => assert!(why.len() > 10, "{field}"),
                Some(_) => {}
            }
        }
    }
}
