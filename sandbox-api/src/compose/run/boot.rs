//! From a plan to running services.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use sandbox_core::{
    Capability, Env, ErrorKind, ExecRequest, Field, NetworkMode, Owner, Result, SandboxError, SandboxSpec, VolumeSource,
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::{
    logs::ServiceLogs,
    member::{Ask, Member, Policy},
    prepare::{Prepared, prepare},
    relay::Relay,
    stack::Stack,
    state::{ServiceHealth, ServicePhase, ServiceState},
    storage, sweep, wait,
};
use crate::{
    AsyncSandbox, Ownership, checks,
    compose::{ComposePlan, Networking, PublishedBy},
    identity::new_identity,
    timeouts::within,
};

/// How many sandboxes of a stack are made at once.
const MADE_AT_ONCE: usize = 8;

/// How long one call about networks may take.
const NETWORK_LIMIT: Duration = Duration::from_secs(60);

/// How a stack is started.
#[derive(Clone)]
pub(super) struct Boot {
    pub(super) plan: ComposePlan,
    pub(super) owner: Owner,
    pub(super) ttl_s: f64,
    pub(super) poll: Duration,
    pub(super) helper_image: String,
    pub(super) volume_sources: BTreeMap<String, String>,
    pub(super) waits_for_health: bool,
}

/// Starts everything. What was made when something fails is in the stack.
pub(super) async fn boot(stack: &Arc<Stack>, boot: &Boot) -> Result<()> {
    let plan = &boot.plan;
    let info = stack.provider.full_info();
    ask_provider(stack, plan).await?;
    let prepared = prepare(&stack.provider, plan, &stack.events).await?;
    let labels = labels(stack);
    let identity = new_identity(boot.owner.clone(), Some(boot.ttl_s));
    stack.resources.lock().await.make(&stack.provider, plan, &stack.id, &sweep::marked(&labels, &identity)?).await?;
    let (sources, helper, noted) = (&boot.volume_sources, &boot.helper_image, &stack.folders_by);
    let folders = storage::make_folders(&stack.provider, plan, &stack.id, sources, helper, noted).await?;
    let resources = stack.resources.lock().await.clone();
    let volumes: BTreeMap<String, String> =
        resources.volumes.iter().map(|(key, volume)| (key.clone(), volume.name.clone())).collect();
    storage::copy_up(&stack.provider, plan, &prepared, &volumes, &folders).await?;
    // Every sandbox is there, connected and filled before the first program runs: names resolve at once.
    let mut making = JoinSet::new();
    let room = Arc::new(Semaphore::new(MADE_AT_ONCE));
    for (order, one) in prepared.iter().enumerate() {
        for replica in 1..=one.service.replicas {
            let mut spec = one.service.spec.clone();
            adapt_spec(
                &mut spec,
                &volumes,
                &resources.networks.iter().map(|(k, n)| (k.clone(), n.name.clone())).collect(),
            );
            storage::use_folders(&stack.provider, &mut spec, &folders).await?;
            if let Some((_, names)) = one.service.networks.first().filter(|_| takes_aliases(&info, plan)) {
                spec.provider_options.insert("aliases".to_owned(), names.clone().into());
            }
            own(&mut spec, stack, boot, &info, &one.service.name, replica, &labels);
            let (provider, room) = (stack.provider.clone(), room.clone());
            let name = one.service.name.clone();
            making.spawn(async move {
                let _permit = room.acquire_owned().await;
                let sandbox = AsyncSandbox::new(provider).with_ownership(Ownership::Shared);
                let result = sandbox.start(Some(spec)).await;
                let result = result.map_err(|error| error.context(format!("service {name:?}")));
                (order, replica, result.map(|()| Arc::new(sandbox)))
            });
        }
    }
    let mut made = BTreeMap::new();
    let mut first = Ok(());
    // All are waited for: what is made when another fails must be removed, too.
    while let Some(joined) = making.join_next().await {
        match joined {
            Ok((order, replica, Ok(sandbox))) => {
                made.insert((order, replica), member(stack, &prepared[order], replica, sandbox));
            }
            Ok((_, _, Err(error))) => first = first.and(Err(error)),
            Err(error) => first = first.and(Err(SandboxError::internal(format!("making a sandbox: {error}")))),
        }
    }
    let members: Vec<(usize, Arc<Member>)> = made.into_iter().map(|((order, _), member)| (order, member)).collect();
    *stack.members.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
        members.iter().map(|(_, member)| member.clone()).collect();
    first?;
    for (order, member) in &members {
        connect(stack, plan, &prepared[*order], member).await?;
        fill(&prepared[*order], member).await?;
    }
    let addresses = addresses(stack, plan, &members).await?;
    set_hosts(stack, plan, &prepared, &members, &addresses).await?;
    forward(stack, &prepared, &members, &addresses).await?;
    publish(stack, &prepared, &members).await?;
    for (order, member) in &members {
        let one = &prepared[*order];
        let mut program = one.program.clone();
        program.env = one.env.overridden_by(&resolved(one, &addresses));
        let (stack_of_task, member, needs) = (stack.clone(), member.clone(), one.service.depends_on.clone());
        let task = tokio::spawn(async move {
            match wait::needs(&stack_of_task, &member, &needs).await {
                Ok(true) => member.run(&program).await,
                Ok(false) => {}
                Err(why) => {
                    member.phase(ServicePhase::Failed(why));
                    member.logs.end();
                }
            }
        });
        stack.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(task);
    }
    wait::until_up(stack, boot.waits_for_health, boot.poll).await
}

/// Asks the provider whether its configuration allows what the plan needs, before anything is made.
async fn ask_provider(stack: &Stack, plan: &ComposePlan) -> Result<()> {
    let provider = &stack.provider;
    if let Some(network) = provider.as_network().filter(|_| plan.networking == Networking::Hosts) {
        within("asking for networking", NETWORK_LIMIT, network.validate_networking()).await?;
    }
    let forwards = plan
        .services
        .iter()
        .any(|service| service.forwards.is_some() || service.ports.iter().any(|port| port.by == PublishedBy::Relay));
    if let Some(forwarding) = provider.as_port_forwarding().filter(|_| forwards) {
        within("asking for forwarding", NETWORK_LIMIT, forwarding.validate_port_forwarding()).await?;
    }
    Ok(())
}

fn labels(stack: &Stack) -> BTreeMap<String, String> {
    BTreeMap::from([
        (sweep::ID.to_owned(), stack.id.clone()),
        ("sandbox.compose.project".to_owned(), stack.project.clone()),
    ])
}

/// Names of the document become names on the provider's side.
fn adapt_spec(spec: &mut SandboxSpec, volumes: &BTreeMap<String, String>, networks: &BTreeMap<String, String>) {
    for mount in &mut spec.volumes {
        if let VolumeSource::Named(name) = &mut mount.source
            && let Some(real) = volumes.get(name)
        {
            name.clone_from(real);
        }
    }
    if let Some(NetworkMode::Named(name)) = &mut spec.network
        && let Some(real) = networks.get(name)
    {
        name.clone_from(real);
    }
    if let Some(serde_json::Value::Object(addresses)) = spec.provider_options.get_mut("network_addresses") {
        let renamed = std::mem::take(addresses).into_iter();
        *addresses = renamed.map(|(name, address)| (networks.get(&name).cloned().unwrap_or(name), address)).collect();
    }
}

/// Name, labels, life and owner of a sandbox.
fn own(
    spec: &mut SandboxSpec,
    stack: &Stack,
    boot: &Boot,
    info: &sandbox_core::ProviderInfo,
    service: &str,
    replica: u32,
    labels: &BTreeMap<String, String>,
) {
    if checks::takes_default(info, Field::Name) && spec.name.is_none() {
        let room = 63 - stack.id.len().min(40) - 5;
        let service: String = service.chars().take(room).collect();
        spec.name = Some(format!("{}-{service}-{replica}", stack.id.chars().take(40).collect::<String>()));
    }
    if checks::takes_default(info, Field::Metadata) {
        spec.metadata.extend(labels.clone());
        spec.metadata.insert("sandbox.compose.service".to_owned(), service.to_owned());
        spec.metadata.insert("sandbox.compose.replica".to_owned(), replica.to_string());
    }
    if checks::takes_default(info, Field::TtlS) {
        spec.ttl_s.get_or_insert(boot.ttl_s);
    }
    if spec.identity.is_none() {
        spec.identity = Some(new_identity(boot.owner.clone(), spec.ttl_s));
    }
}

fn member(stack: &Stack, one: &Prepared, replica: u32, sandbox: Arc<AsyncSandbox>) -> Arc<Member> {
    stack.events.tell(Some((&one.service.name, replica)), "created", None);
    let mut state = ServiceState::new();
    if one.program.health.is_some() {
        state.health = ServiceHealth::Starting;
    }
    Arc::new(Member {
        service: one.service.name.clone(),
        replica,
        sandbox,
        logs: ServiceLogs::new(),
        state: watch::Sender::new(state),
        ask: watch::Sender::new(Ask::Run),
        policy: Policy {
            restart: one.service.restart,
            stop_signal: one.program.stop_signal,
            stop_grace: Duration::from_secs_f64(one.service.stop_grace_s),
            keeps_input: one.service.keeps_input,
        },
        events: stack.events.clone(),
        is_watched: true,
    })
}

/// Whether a sandbox is made with its names in its first network: it need not leave that and come back.
fn takes_aliases(info: &sandbox_core::ProviderInfo, plan: &ComposePlan) -> bool {
    let support = info.fields.get("provider_options.aliases");
    plan.networking == Networking::Networks
        && support.is_some_and(|support| !matches!(support, sandbox_core::FieldSupport::Refused(_)))
}

/// Puts a sandbox into its networks, under its names there.
async fn connect(stack: &Stack, plan: &ComposePlan, one: &Prepared, member: &Member) -> Result<()> {
    if plan.networking != Networking::Networks {
        return Ok(());
    }
    let networks = checks::require(stack.provider.name(), stack.provider.as_networks(), Capability::Networks)?;
    let handle = member.sandbox.handle()?;
    let real = stack.resources.lock().await.networks.clone();
    for (index, (key, names)) in one.service.networks.iter().enumerate() {
        let Some(network) = real.get(key) else { continue };
        if index == 0 && takes_aliases(&stack.provider.full_info(), plan) {
            continue;
        }
        let attach = || networks.attach_network(&handle, network.name.clone(), names.clone());
        let attached = within("attaching a network", NETWORK_LIMIT, attach()).await;
        match attached {
            // It was made in its first network, where it has no further names yet.
            Err(error) if index == 0 && matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::InvalidState) => {
                let detach = networks.detach_network(&handle, network.name.clone());
                within("detaching a network", NETWORK_LIMIT, detach).await?;
                within("attaching a network", NETWORK_LIMIT, attach()).await?;
            }
            other => other?,
        }
    }
    Ok(())
}

/// Makes folders and writes what a service is given.
async fn fill(one: &Prepared, member: &Member) -> Result<()> {
    let sandbox = &member.sandbox;
    let context = |error: SandboxError| error.context(format!("service {:?}", member.service));
    for folder in &one.service.folders {
        if sandbox.provider().as_files().is_some() {
            sandbox.make_dir(folder.as_str()).await.map_err(context)?;
        } else {
            let made =
                sandbox.exec(ExecRequest::argv(["mkdir", "-p", "--", folder.as_str()])).await.map_err(context)?;
            if !made.outcome().is_success() {
                return Err(context(SandboxError::create(format!("folder {folder} could not be made"))));
            }
        }
    }
    for (from, to) in &one.service.copies {
        if from.is_dir() {
            sandbox.upload_dir(from, to.as_str()).await.map_err(context)?;
        } else {
            sandbox.upload(from, to.as_str()).await.map_err(context)?;
        }
    }
    for contents in &one.contents {
        let options = sandbox_core::WriteOptions { mode: Some(contents.mode), owner: contents.owner.clone() };
        sandbox.write_file_with(contents.target.as_str(), contents.bytes.clone(), options).await.map_err(context)?;
    }
    Ok(())
}

/// The address of each service's first sandbox, where hosts files are how they find each other.
async fn addresses(
    stack: &Stack,
    plan: &ComposePlan,
    members: &[(usize, Arc<Member>)],
) -> Result<BTreeMap<String, String>> {
    let mut addresses = BTreeMap::new();
    let Some(network) = stack.provider.as_network().filter(|_| plan.networking == Networking::Hosts) else {
        return Ok(addresses);
    };
    for (_, member) in members.iter().filter(|(_, member)| member.replica == 1) {
        let handle = member.sandbox.handle()?;
        let address = within("asking for an address", NETWORK_LIMIT, network.network_address(&handle)).await;
        match address {
            Ok(address) => {
                addresses.insert(member.service.clone(), address);
            }
            // One without a network has none, and nobody asks for it.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidState | ErrorKind::Unsupported) => {}
            Err(error) => return Err(error.context(format!("service {:?}", member.service))),
        }
    }
    Ok(addresses)
}

async fn set_hosts(
    stack: &Stack,
    plan: &ComposePlan,
    prepared: &[Prepared],
    members: &[(usize, Arc<Member>)],
    addresses: &BTreeMap<String, String>,
) -> Result<()> {
    let Some(network) = stack.provider.as_network().filter(|_| plan.networking == Networking::Hosts) else {
        return Ok(());
    };
    for (order, member) in members {
        let service = &prepared[*order].service;
        let mut hosts: BTreeMap<String, String> = BTreeMap::new();
        for (peer, names) in &service.hosts {
            if let Some(address) = addresses.get(peer) {
                hosts.extend(names.iter().map(|name| (name.clone(), address.clone())));
            }
        }
        if hosts.is_empty() {
            continue;
        }
        hosts.extend(service.spec.extra_hosts.iter().map(|entry| (entry.name.clone(), entry.address.clone())));
        let handle = member.sandbox.handle()?;
        within("setting host names", NETWORK_LIMIT, network.set_hosts(&handle, hosts)).await?;
    }
    Ok(())
}

/// Ports of another service on the loopback of this one.
async fn forward(
    stack: &Stack,
    prepared: &[Prepared],
    members: &[(usize, Arc<Member>)],
    addresses: &BTreeMap<String, String>,
) -> Result<()> {
    for (order, member) in members {
        let Some((target, ports)) = &prepared[*order].service.forwards else { continue };
        let forwarding =
            checks::require(stack.provider.name(), stack.provider.as_port_forwarding(), Capability::PortForwarding)?;
        let Some(address) = addresses.get(target) else {
            return Err(SandboxError::invalid_state(format!("service {target:?} has no address")));
        };
        let handle = member.sandbox.handle()?;
        let call = forwarding.forward_ports(&handle, address.clone(), ports.clone());
        let stream = within("forwarding ports", NETWORK_LIMIT, call).await?;
        stack.forwards.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(stream);
    }
    Ok(())
}

async fn publish(stack: &Stack, prepared: &[Prepared], members: &[(usize, Arc<Member>)]) -> Result<()> {
    for (order, member) in members {
        for port in prepared[*order].service.ports.iter().filter(|port| port.by == PublishedBy::Relay) {
            let relay = Relay::start(&member.service, member.replica, member.sandbox.clone(), &port.port).await?;
            stack.relays.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(relay);
        }
    }
    Ok(())
}

/// The variables whose URL names a service, with its address in place of the name.
fn resolved(one: &Prepared, addresses: &BTreeMap<String, String>) -> Env {
    let mut env = Env::default();
    for name in &one.service.resolve_environment {
        let value = one.service.spec.env.get(name).or_else(|| one.env.get(name));
        let Some(url) = value.and_then(|value| value.as_str()) else { continue };
        let Some((scheme, rest)) = url.split_once("://") else { continue };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        let (credentials, host) = authority.rsplit_once('@').map_or(("", authority), |(user, host)| (user, host));
        let (host, port) =
            host.split_once(':').map_or((host, String::new()), |(host, port)| (host, format!(":{port}")));
        if let Some(address) = addresses.get(host) {
            let at = if credentials.is_empty() { "" } else { "@" };
            env.insert(name, format!("{scheme}://{credentials}{at}{address}{port}{tail}"));
        }
    }
    env
}
