//! What isolated sandboxes honour, as far as this machine lets them.

use sandbox_agent::{Limit, probe};
use sandbox_core::{Field, ProviderInfo};

use crate::{config::LocalConfig, error::NAME, user::is_privileged};

const HONOURED: [Field; 24] = [
    Field::Name,
    Field::TtlS,
    Field::ReadyTimeoutS,
    Field::Workdir,
    Field::Env,
    Field::Metadata,
    Field::NetworkNone,
    Field::NetworkHost,
    Field::Ports,
    Field::ShmSizeMib,
    Field::VolumesNamed,
    Field::VolumesTmpfs,
    Field::CapDrop,
    Field::ExtraHosts,
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

const NO_DEVICES: &str = "isolated sandboxes have no devices";

const REFUSED: [(Field, &str); 8] = [
    (Field::DiskGib, "a folder of this machine has no size limit"),
    (Field::Gpu, NO_DEVICES),
    (Field::GpuType, NO_DEVICES),
    (Field::Entrypoint, "the main process of a local sandbox is its agent"),
    (Field::Sidecars, "local runs no containers"),
    (Field::CapAdd, "commands of an isolated sandbox hold no capability"),
    (Field::SeccompProfile, "local has one filter of system calls, which is always in force"),
    (Field::Privileged, "no id of an isolated sandbox is this machine's root"),
];

const OWN_USER_ONLY: &str = "this process is not root: only the sandbox's own user, root or 0";
const IMAGE: &str =
    "a whole system, as a folder, rootfs:/absolute/path, or as a file, tar:/absolute/path (plain, gzip, zstd)";
const NO_NEW_PRIVS: &str = "always on; false is refused";
const NO_OPTIONS: &str = "local's only option, shared_volumes, needs the setting shared_root";
const NO_NETWORKS: &str = "this process is not root: it cannot connect the networks of sandboxes";
const BIND_AS_ROOT: &str =
    "this process is root: the owner's files are the sandbox's user's; what is root's can only be read";

/// What this machine lets this process do, looked up once.
#[derive(Clone, Debug)]
pub(crate) struct Abilities {
    pub(crate) can_pause: bool,
    /// Why the limits cannot be honoured; none: they can.
    limits: [(Field, Option<String>); 3],
}

impl Abilities {
    pub(crate) fn look_up() -> Self {
        let found = probe();
        let refusal = |limit| found.refusal(limit).map(str::to_owned);
        Self {
            can_pause: found.version.is_some() && refusal(Limit::Freeze).is_none(),
            limits: [
                (Field::Cpu, refusal(Limit::Cpu)),
                (Field::MemoryMib, refusal(Limit::Memory)),
                (Field::Pids, refusal(Limit::Pids)),
            ],
        }
    }
}

pub(crate) fn info(config: &LocalConfig, abilities: &Abilities) -> ProviderInfo {
    let mut info = ProviderInfo::new(NAME)
        .with_isolation(config.isolation.clone())
        .honours(HONOURED)
        .emulates(Field::Image, IMAGE)
        .emulates(Field::NoNewPrivs, NO_NEW_PRIVS)
        .with_detail("limits", "the kernel is shared with this machine")
        .with_detail("needs", "linux 5.12 or later with user namespaces; 5.19 for rootfs as root");
    for (field, why) in REFUSED {
        info = info.refuses(field, why);
    }
    for (field, refusal) in &abilities.limits {
        info = match refusal {
            None => info.honours([*field]),
            Some(why) => info.refuses(*field, why.clone()),
        };
    }
    info = match &config.shared_root {
        Some(_) => info.honours([Field::ProviderOptions]),
        None => info.refuses(Field::ProviderOptions, NO_OPTIONS),
    };
    if is_privileged() {
        info.emulates(Field::VolumesBind, BIND_AS_ROOT).honours([Field::NetworkNamed])
    } else {
        info.refuses(Field::NetworkNamed, NO_NETWORKS)
            .honours([Field::VolumesBind])
            .emulates(Field::User, OWN_USER_ONLY)
            .emulates(Field::ExecUser, OWN_USER_ONLY)
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Field, FieldSupport};

    use super::{Abilities, info};
    use crate::config::LocalConfig;

    #[test]
    fn every_field_is_honoured_emulated_or_refused_with_a_reason() {
        let config = LocalConfig { isolation: "namespaces".to_owned(), ..LocalConfig::default() };
        let info = info(&config, &Abilities::look_up());
        assert_eq!(info.isolation, "namespaces");
        for field in Field::ALL {
            match info.fields.get(field.as_str()) {
                None => panic!("{field} is not listed"),
                Some(FieldSupport::Refused(why)) => assert!(why.len() > 10, "{field}"),
                Some(_) => {}
            }
        }
    }
}
