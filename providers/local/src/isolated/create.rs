//! Making an isolated sandbox.

use std::path::Path;

use sandbox_agent::ServeConfig;
use sandbox_agent_client::{find_agent, process, this_process};
use sandbox_core::{ByteString, Owner, Result, SandboxError, SandboxSpec, Secret};
use sandbox_process::User;
use sandbox_protocol::methods::{self, FileRead};
use tokio::runtime::Handle;

use crate::{
    create::{Made, Unclaimed, as_create, identity},
    error::NAME,
    folder::{FileOwner, random_hex},
    isolated::{
        door::Door,
        endpoint::Endpoints,
        error::launch as launch_error,
        image::Image,
        info::Abilities,
        inside::Inside,
        memory::MemoryWatch,
        network::{self, Networks},
        plan::{self, Plan},
        running::Running,
        standby::Waiting,
        volume::{self, Mounts},
    },
    paths::Paths,
    provider::Shared,
    record::{Lasting, Record, now_ms},
    sandbox::{Parts, Sandbox},
    user::{Identity, is_privileged},
    workspace::Root,
};

/// The most that is read of the files that name users.
const USER_FILES_MAX: usize = 16 << 20;

/// The agent ends the sandbox by itself so long after its time, in seconds, should nobody here do it.
pub(crate) const TTL_SLACK_S: f64 = 5.0;

/// How long a command of a sandbox that outlives its clients waits for one that has gone, in seconds: as long as it lives.
const GRACE_LASTING_S: f64 = 1e9;

/// Makes everything that a sandbox needs, or nothing. Blocks, within a runtime.
pub(crate) fn create(shared: &Shared, abilities: &Abilities, spec: SandboxSpec) -> Result<Unclaimed> {
    let Shared { config, root, records, .. } = shared;
    check_user(&spec)?;
    let agent = find_agent(config.agent_path.as_deref(), std::env::consts::ARCH)?;
    root.prepare().map_err(as_create)?;
    let image = Image::find(config, root, records, &spec)?;
    let mounts = Mounts::find(config, root, records, &spec, image.as_ref())?;
    // One that is new starts while the folders are made; dropped, it ends.
    let Waiting { id, socket, launcher } = shared.standby.take(&agent)?;
    let is_lasting = is_lease(&spec);
    let token = Secret::new(random_hex(32)?);
    let mut made = Made::new(root, records, &id);
    let mut record = Record {
        id: id.clone(),
        incarnation: random_hex(16)?,
        name: spec.name.clone(),
        identity: identity(&spec),
        holder: this_process(),
        workspace: ByteString::from(root.inside(&id).as_path()),
        is_owned: true,
        metadata: spec.metadata.clone(),
        inside: None,
        lasting: is_lasting.then(|| Lasting::now(root.path())),
        volumes: mounts.names(),
        networks: Vec::new(),
        hosts: Default::default(),
        image_key: image.as_ref().and_then(Image::key),
        ports: spec.ports.clone(),
        token: Some(token.clone()),
    };
    // First: should this process be killed, what it has made is found.
    made.record = true;
    records.write(&record).map_err(as_create)?;
    made.workspace = true;
    root.make_inside(&root.inside(&id)).map_err(as_create)?;
    // Links above it are the user's own; the launcher follows none.
    let real = root.path().canonicalize();
    let real = Root::new(real.map_err(|error| as_create(SandboxError::io(root.path().display(), error)))?);
    let plan = Plan::new(config, &spec, &id, &real, abilities, image.as_ref(), &mounts)?;
    if plan.has_rootfs {
        root.make_inside(&root.upper(&id)).map_err(as_create)?;
    }
    let mut launch = plan.launch;
    if is_lasting {
        (launch.die_with_parent, launch.outlives_parent) = (None, true);
    }
    let door = Door::to_make(records, &record)?;
    door.make(&socket).map_err(as_create)?;
    drop(socket);
    let serve = ServeConfig {
        user: plan.user.clone().filter(|_| is_privileged()),
        shell: config.shell.clone(),
        ttl_s: agent_ttl_s(&spec, &record),
        env: plan.env,
        token: Some(token.clone()),
        incarnation: Some(record.incarnation.clone()),
        ..ServeConfig::default()
    };
    launch.serve = Some(match is_lasting {
        // Whoever comes back takes its command up again.
        true => ServeConfig { disconnect_grace_s: GRACE_LASTING_S, ..serve },
        false => serve,
    });
    shared.standby.learn(launch.basis());
    let launched = launcher.launch(&launch).map_err(|error| {
        let cause = volume::cause(&error);
        volume::blame(launch_error(error), cause.as_deref(), &spec)
    })?;
    let ids = launched.report().ids;
    let workdir = launch.workdir.map(|workdir| workdir.target).unwrap_or_default();
    let running = Running::new(launched, &workdir);
    let runtime = Handle::current();
    let mut inside = runtime.block_on(Inside::connect(running, ids, door.connect().map_err(as_create)?, token))?;
    inside.endpoints = Endpoints::new(spec.ports.clone());
    inside.memory = inside.cgroup().filter(|_| spec.resources.memory_mib.is_some()).and_then(MemoryWatch::new);
    give_workdir(&runtime, &inside, plan.user.as_deref(), &launch.user, &real.inside(&id))?;

    let leftover = inside.leftover();
    if is_lasting {
        record.holder = process(leftover.pid, leftover.start_ticks);
    }
    record.inside = Some(leftover);
    records.rewrite(&record).map_err(as_create)?;
    if let Some(network) = plan::network_name(config, &spec) {
        network::join(&Networks::new(root, records), &mut record, network, Vec::new())?;
    }
    if is_lasting {
        // Now it is found by others, and not before.
        inside.running.commit()?;
    }
    made.keep();
    let sandbox = Sandbox::new(Parts {
        record,
        root: root.clone(),
        records: records.clone(),
        paths: Paths::new(workdir, None),
        user: Identity::own(),
        env: Default::default(),
        shell: None,
        inside: Some(inside),
    });
    Ok(Unclaimed::new(sandbox, Vec::new()))
}

/// Whether it outlives the program that makes it.
pub(crate) fn is_lease(spec: &SandboxSpec) -> bool {
    spec.identity.as_ref().is_some_and(|identity| identity.owner == Owner::Lease)
}

/// When the agent is to end by itself. It alone does where nobody is there any more.
fn agent_ttl_s(spec: &SandboxSpec, record: &Record) -> Option<f64> {
    let left_ms = |at_ms: u64| at_ms.saturating_sub(now_ms()) as f64;
    match (spec.ttl_s, record.lasting.is_some()) {
        (Some(ttl_s), true) => Some(ttl_s),
        (Some(ttl_s), false) => Some(ttl_s + TTL_SLACK_S),
        (None, true) => record.identity.expires_at_ms.map(|at_ms| left_ms(at_ms) / 1000.0 + TTL_SLACK_S),
        (None, false) => None,
    }
}

/// Without privileges only one id is mapped, and there is nobody to switch to.
fn check_user(spec: &SandboxSpec) -> Result<()> {
    match &spec.user {
        Some(user) if !is_privileged() && !is_only_user(user) => {
            let why = "this process is not root, so the sandbox has one user only: root";
            Err(SandboxError::unsupported_field(NAME, "user", why))
        }
        _ => Ok(()),
    }
}

/// Whether a text names the one user of a sandbox that has one only.
pub(crate) fn is_only_user(user: &str) -> bool {
    user.splitn(2, ':').all(|part| matches!(part, "0" | "root" | "sandbox"))
}

/// Gives the working folder to the user of commands.
fn give_workdir(
    runtime: &Handle,
    inside: &Inside,
    user: Option<&str>,
    named: &sandbox_agent::SandboxUser,
    workdir: &Path,
) -> Result<()> {
    if inside.has_one_user() {
        return Ok(());
    }
    let (uid, gid) = match user {
        None => (named.uid, named.gid),
        Some("0:0") => (0, 0),
        Some(user) => runtime.block_on(resolve(inside, user))?,
    };
    let ids = inside.ids;
    let outside = |first: u32, id: u32| {
        let is_mapped = id < ids.count;
        is_mapped.then(|| first + id).ok_or_else(|| {
            SandboxError::invalid_input("user", format!("has the id {id}; a sandbox has 0 to {}", ids.count - 1))
        })
    };
    let owner = FileOwner { uid: outside(ids.outside_uid, uid)?, gid: outside(ids.outside_gid, gid)? };
    std::os::unix::fs::lchown(workdir, Some(owner.uid), Some(owner.gid))
        .map_err(|error| as_create(SandboxError::io(workdir.display(), error)))
}

/// The ids of a user, by the sandbox's own files.
async fn resolve(inside: &Inside, user: &str) -> Result<(u32, u32)> {
    let [passwd, group] = ["/etc/passwd", "/etc/group"].map(|path| async move {
        let request = FileRead { path: path.into(), ..FileRead::default() };
        let read = inside.client.call_for_body::<sandbox_core::FileStat>(methods::FILE_READ, &request).await;
        match read {
            Ok((_, body)) => body.collect(USER_FILES_MAX).await,
            // A system without the file has no names.
            Err(error) if error.kind() == sandbox_core::ErrorKind::NotFound => Ok(Default::default()),
            Err(error) => Err(error),
        }
    });
    let (passwd, group) = (passwd.await?, group.await?);
    let user = User::resolve(user.as_bytes(), &passwd, &group)
        .map_err(|error| SandboxError::invalid_input("user", error.to_string()))?;
    Ok((user.uid, user.gid))
}
