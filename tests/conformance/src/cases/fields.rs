//! One case for each field: a refused one is refused by name, an honoured one has its effect.

use sandbox_core::{
    ControlRequest, ErrorKind, ExecOutcome, ExecRequest, Field, FieldSupport, HostEntry, ListFilter, NetworkMode,
    NetworkRequest, SandboxSidecarSpec, SandboxSpec, StdinSource, VolumeMount, VolumeRequest, VolumeSource,
};

use crate::{
    case::Case,
    check::{Check, Stop, ensure_refused},
    context::Context,
    sandbox::TestSandbox,
};

const PROVES: &str = "I04, contract: a field that cannot be honoured is refused";

pub(super) fn cases() -> Vec<Case> {
    let case = |field: &Field| {
        let field = *field;
        Case::new(format!("field.{field}"), PROVES, move |cx| async move {
            match cx.info().support(field) {
                FieldSupport::Refused(_) if field == Field::ExecSignal => signals_are_refused(&cx).await,
                FieldSupport::Refused(_) => is_refused(&cx, field),
                FieldSupport::Emulated(how) if matches!(field, Field::User | Field::ExecUser) => {
                    Err(Stop::skipped(format!("emulated ({how}), so which users there are is not known")))
                }
                _ => has_its_effect(&cx, field).await,
            }
        })
    };
    Field::ALL.iter().map(case).collect()
}

/// A spec with this field set; none for a field of a command.
fn spec_with(cx: &Context, field: Field) -> Option<SandboxSpec> {
    let mut spec = cx.spec();
    let volume = |source| VolumeMount { source, target: "/conformance-volume".to_owned(), read_only: false };
    match field {
        Field::Image => spec.image.get_or_insert_with(|| "debian:12".to_owned()).truncate(usize::MAX),
        Field::Name => spec.name = Some(format!("conformance-{}", cx.token())),
        Field::TtlS => spec.ttl_s = Some(600.0),
        Field::ReadyTimeoutS => spec.ready_timeout_s = Some(50.0),
        Field::Workdir => spec.workdir = Some(cx.absent_workdir()),
        Field::Env => spec.env.insert("FIELD", cx.token()),
        Field::Metadata => spec = spec.with_metadata("field", cx.token()),
        Field::Cpu => spec.resources.cpu = Some(0.5),
        Field::MemoryMib => spec.resources.memory_mib = Some(256),
        Field::DiskGib => spec.resources.disk_gib = Some(1),
        Field::Gpu => spec.resources.gpu = Some(1),
        Field::GpuType => spec.resources.gpu_type = Some("any".to_owned()),
        Field::Pids => spec.resources.pids = Some(64),
        Field::Entrypoint => spec.entrypoint = Some(vec!["sleep".to_owned(), "600".to_owned()]),
        Field::ProviderOptions => drop(spec.provider_options.insert("no_such_option".to_owned(), true.into())),
        Field::Ports => spec.ports = vec![8000],
        Field::Sidecars => spec.sidecars = vec![sidecar()],
        Field::User => spec.user = Some("12345:23456".to_owned()),
        Field::VolumesBind => {
            spec.volumes.push(volume(VolumeSource::Bind(cx.temp().to_string_lossy().into_owned())));
        }
        Field::VolumesNamed => spec.volumes.push(volume(VolumeSource::Named(format!("conformance-{}", cx.token())))),
        Field::VolumesTmpfs => spec.volumes.push(volume(VolumeSource::Tmpfs(Some(16)))),
        Field::NetworkNone => spec.network = Some(NetworkMode::None),
        Field::NetworkHost => spec.network = Some(NetworkMode::Host),
        Field::NetworkNamed => spec.network = Some(NetworkMode::Named(own_name(cx))),
        Field::ShmSizeMib => spec.shm_size_mib = Some(96),
        Field::CapAdd => spec.security.cap_add = vec!["SYS_PTRACE".to_owned()],
        Field::CapDrop => spec.security.cap_drop = vec!["ALL".to_owned()],
        Field::SeccompProfile => spec.security.seccomp_profile = Some("unconfined".to_owned()),
        Field::NoNewPrivs => spec.security.no_new_privs = Some(true),
        Field::Privileged => spec.security.privileged = true,
        Field::ExtraHosts => {
            spec.extra_hosts = vec![HostEntry { name: "conformance.test".to_owned(), address: "192.0.2.7".to_owned() }];
        }
        _ => return None,
    }
    Some(spec)
}

fn sidecar() -> SandboxSidecarSpec {
    SandboxSidecarSpec { name: "side".to_owned(), image: "debian:12".to_owned(), ..Default::default() }
}

/// A command with this field set, and how it must end when the field has its effect.
fn exec_with(field: Field) -> Option<(ExecRequest, ExecOutcome)> {
    let done = ExecOutcome::Exited(0);
    Some(match field {
        Field::ExecEnv => (ExecRequest::shell("test \"$FIELD\" = set").with_env("FIELD", "set"), done),
        Field::ExecCwd => (ExecRequest::shell("test \"$(pwd -P)\" = /proc").with_cwd("/proc"), done),
        Field::ExecUser => (ExecRequest::shell("test \"$(id -u)\" = 12345").with_user("12345").with_cwd("/"), done),
        Field::ExecTimeoutS => {
            (ExecRequest::argv(["sleep", "20"]).with_timeout_s(0.3), ExecOutcome::TimedOut { idle: false })
        }
        Field::ExecIdleTimeoutS => {
            (ExecRequest::argv(["sleep", "20"]).with_idle_timeout_s(0.3), ExecOutcome::TimedOut { idle: true })
        }
        Field::ExecKillGraceS => (ExecRequest::shell("true").with_kill_grace_s(1.0), done),
        Field::ExecStdinBytes => (ExecRequest::shell("read x; test \"$x\" = in").with_stdin_bytes("in\n"), done),
        Field::ExecStdinStream => (ExecRequest::shell("true").with_stdin(StdinSource::Stream), done),
        _ => return None,
    })
}

fn is_refused(cx: &Context, field: Field) -> Check {
    let refusal = match (spec_with(cx, field), exec_with(field)) {
        (Some(spec), _) => cx.info().check_spec(&only(spec, cx, field)),
        (None, Some((request, _))) => cx.info().check_exec(&request),
        (None, None) => return Err(Stop::skipped("this suite does not know the field")),
    };
    let error = ensure_refused(refusal, &[ErrorKind::Unsupported], field.as_str())?;
    if field != Field::ExecUser {
        ensure_eq!(error.field(), Some(field.as_str()), "the field that the error names");
    }
    Ok(())
}

/// Told by the answer to a control request, not by a field of a request.
async fn signals_are_refused(cx: &Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let stream = sandbox.start(ExecRequest::argv(["sleep", "20"])).await?;
    let signal = stream.control().control(ControlRequest::Signal(10)).await;
    ensure_refused(signal, &[ErrorKind::Unsupported], "a signal")?;
    Ok(())
}

/// Without the fields that the base spec sets itself, so that the refusal is of this one.
fn only(mut spec: SandboxSpec, cx: &Context, field: Field) -> SandboxSpec {
    let base = cx.spec();
    if field != Field::Image {
        spec.image = None;
    }
    if field != Field::Env {
        spec.env = Default::default();
    }
    if field != Field::Workdir && base.workdir == spec.workdir {
        spec.workdir = None;
    }
    spec
}

/// Makes what a spec with this field names.
async fn prepare(cx: &Context, field: Field) -> Check {
    match field {
        // Root's own files are not every provider's to give away.
        Field::VolumesBind => drop(std::os::unix::fs::chown(cx.temp(), Some(1000), Some(1000))),
        Field::VolumesNamed => {
            if let Some(volumes) = cx.provider().as_volumes() {
                volumes.create_volume(VolumeRequest { name: own_name(cx), ..Default::default() }).await?;
            }
        }
        Field::NetworkNamed => {
            if let Some(networks) = cx.provider().as_networks() {
                networks.create_network(NetworkRequest { name: own_name(cx), ..Default::default() }).await?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A network in use stays; one that is not can be removed.
async fn network_is_removed(cx: &Context, sandbox: &TestSandbox) -> Check {
    let Some(networks) = cx.provider().as_networks() else { return Ok(()) };
    let early = networks.remove_network(own_name(cx)).await;
    sandbox.close().await?;
    networks.remove_network(own_name(cx)).await?;
    ensure_refused(early, &[ErrorKind::InvalidState], "the removal of a network in use")?;
    Ok(())
}

fn own_name(cx: &Context) -> String {
    format!("conformance-{}", cx.token())
}

/// A volume keeps what a sandbox has written that is gone, and can be removed then.
async fn volume_is_kept(cx: &Context) -> Check {
    let Some(spec) = spec_with(cx, Field::VolumesNamed) else { return Ok(()) };
    let sandbox = cx.sandbox_with(spec).await?;
    let kept = sandbox.text("cat /conformance-volume/f").await;
    let removal = match cx.provider().as_volumes() {
        Some(volumes) => {
            let early = volumes.remove_volume(own_name(cx)).await;
            sandbox.close().await?;
            volumes.remove_volume(own_name(cx)).await?;
            Some(early)
        }
        None => None,
    };
    ensure_eq!(kept?, "kept", "a file of a named volume after its sandbox has gone");
    if let Some(early) = removal {
        ensure_refused(early, &[ErrorKind::InvalidState], "the removal of a volume in use")?;
    }
    Ok(())
}

async fn has_its_effect(cx: &Context, field: Field) -> Check {
    if let Some((request, expected)) = exec_with(field) {
        let sandbox = cx.sandbox().await?;
        ensure_eq!(*sandbox.run(request).await?.outcome(), expected, "outcome of a command with {field}");
        return Ok(());
    }
    let Some(spec) = spec_with(cx, field) else {
        return Err(Stop::skipped("seen by cancel.signal_reaches_the_command"));
    };
    let test = match field {
        Field::Env => format!("test \"$FIELD\" = {}", cx.token()),
        Field::Workdir => "test \"$(pwd)\" != / && touch here".to_owned(),
        Field::User => "test \"$(id -u):$(id -g)\" = 12345:23456".to_owned(),
        Field::Image if cx.spec().image.is_some() => "true".to_owned(),
        Field::TtlS | Field::ReadyTimeoutS | Field::Name | Field::Metadata | Field::Cpu => "true".to_owned(),
        Field::MemoryMib => {
            "test ! -e /sys/fs/cgroup/memory.max || grep -qx 268435456 /sys/fs/cgroup/memory.max".to_owned()
        }
        Field::Pids => {
            "i=0; while [ $i -lt 200 ]; do sleep 2 & i=$((i+1)); done; test $(jobs -p | wc -l) -lt 100".to_owned()
        }
        Field::VolumesBind => "touch /conformance-volume/from-inside".to_owned(),
        // What a network is for is seen by network.sandboxes_of_one_reach_each_other.
        Field::NetworkNamed => "true".to_owned(),
        Field::VolumesNamed if cx.provider().as_volumes().is_none() => {
            return Err(Stop::skipped("the provider mounts volumes that are there, and the suite cannot make one"));
        }
        Field::VolumesNamed => "echo kept > /conformance-volume/f".to_owned(),
        Field::VolumesTmpfs => "grep -q ' /conformance-volume tmpfs ' /proc/mounts".to_owned(),
        Field::NetworkNone => "test \"$(tail -n +3 /proc/net/dev | grep -v '^ *lo:' | wc -l)\" -eq 0".to_owned(),
        Field::ShmSizeMib => "test \"$(df -k /dev/shm | tail -n 1 | awk '{print $2}')\" -eq 98304".to_owned(),
        Field::CapDrop => "grep -q '^CapEff:.0*$' /proc/self/status".to_owned(),
        Field::NoNewPrivs => "grep -q '^NoNewPrivs:.1$' /proc/self/status".to_owned(),
        Field::ExtraHosts => "grep -q '192.0.2.7.*conformance.test' /etc/hosts".to_owned(),
        Field::ProviderOptions => return Err(Stop::skipped("seen by lifecycle.refused_create_leaves_nothing")),
        Field::Ports => return Err(Stop::skipped("seen by services.declared_port_has_an_endpoint")),
        _ => return Err(Stop::skipped("honoured, but no effect that can be seen from inside on every provider")),
    };
    prepare(cx, field).await?;
    let sandbox = cx.sandbox_with(spec).await?;
    let result = sandbox.sh(test).await?;
    match result.outcome() {
        // A limit on processes may end the shell itself: that is its effect.
        ExecOutcome::Exited(_) | ExecOutcome::Signalled(_) if field == Field::Pids && !result.stderr.is_empty() => {}
        outcome => ensure!(outcome.is_success(), "{field} has no effect inside ({outcome:?})"),
    }
    if field == Field::VolumesNamed {
        sandbox.close().await?;
        volume_is_kept(cx).await?;
    }
    if field == Field::NetworkNamed {
        network_is_removed(cx, &sandbox).await?;
    }
    if field == Field::VolumesBind {
        ensure!(cx.local("from-inside").exists(), "a file written to the mounted folder is not in it");
    }
    if matches!(field, Field::Name | Field::Metadata)
        && let Some(list) = cx.provider().as_list_sweep()
    {
        let filter = ListFilter { run_id: Some(cx.token().to_owned()), ..Default::default() };
        let records = list.list(filter).await?;
        let is_seen = records.iter().any(|record| match field {
            Field::Name => record.name.as_deref() == Some(&format!("conformance-{}", cx.token())),
            _ => record.metadata.get("field").map(String::as_str) == Some(cx.token()),
        });
        ensure!(is_seen, "{field} is not in the list");
    }
    Ok(())
}
