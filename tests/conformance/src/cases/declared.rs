//! What a provider says of itself is what it is: one case for each capability.

use sandbox_core::{Capability, SandboxProvider};

use crate::{
    case::Case,
    check::{Check, Stop},
    context::Context,
};

const PROVES: &str = "contract: Capabilities, undeclared ones are refused";

pub(super) fn cases() -> Vec<Case> {
    let case = |capability: &Capability| {
        let capability = *capability;
        let name = format!("capability.{capability}_is_declared_if_and_only_if_it_is_there");
        Case::new(name, PROVES, move |cx| async move { declaration_is_true(&cx, capability) })
    };
    let mut cases: Vec<Case> = Capability::ALL.iter().map(case).collect();
    cases.push(Case::new(
        "provider.info_is_its_own_and_stays",
        "contract: Required operations",
        info_is_its_own_and_stays,
    ));
    cases
}

fn is_there(provider: &dyn SandboxProvider, capability: Capability) -> Check<bool> {
    Ok(match capability {
        Capability::Endpoint => provider.as_endpoint().is_some(),
        Capability::PauseResume => provider.as_pause_resume().is_some(),
        Capability::Pty => provider.as_pty().is_some(),
        Capability::PtyAttach => provider.as_pty_attach().is_some(),
        Capability::Connect => provider.as_connect().is_some(),
        Capability::BackgroundServices => provider.as_background_services().is_some(),
        Capability::Network => provider.as_network().is_some(),
        Capability::PortForwarding => provider.as_port_forwarding().is_some(),
        Capability::SharedStorage => provider.as_shared_storage().is_some(),
        Capability::RuntimeRequirements => provider.as_runtime_requirements().is_some(),
        Capability::Sidecars => provider.as_sidecars().is_some(),
        Capability::Files => provider.as_files().is_some(),
        Capability::ListSweep => provider.as_list_sweep().is_some(),
        Capability::Jobs => provider.as_jobs().is_some(),
        Capability::Renew => provider.as_renew().is_some(),
        Capability::Snapshots => provider.as_snapshots().is_some(),
        Capability::ImageConfig => provider.as_image_config().is_some(),
        Capability::BuildImage => provider.as_build_image().is_some(),
        Capability::Networks => provider.as_networks().is_some(),
        Capability::Volumes => provider.as_volumes().is_some(),
        Capability::Metrics => provider.as_metrics().is_some(),
        Capability::NetworkPolicy => provider.as_network_policy().is_some(),
        _ => return Err(Stop::skipped("this suite does not know the capability")),
    })
}

fn declaration_is_true(cx: &Context, capability: Capability) -> Check {
    let provider = cx.provider();
    let is_there = is_there(provider.as_ref(), capability)?;
    ensure_eq!(provider.capabilities().contains(capability), is_there, "declared by capabilities()");
    ensure_eq!(provider.full_info().capabilities.contains(capability), is_there, "declared by full_info()");
    Ok(())
}

async fn info_is_its_own_and_stays(cx: Context) -> Check {
    let provider = cx.provider();
    ensure_eq!(provider.info().name, provider.name(), "the name in info()");
    ensure!(!provider.info().isolation.is_empty(), "info() does not say how commands are kept apart");
    let before = provider.full_info();
    cx.sandbox().await?;
    ensure!(provider.full_info() == before, "info() changed with the first sandbox");
    ensure!(
        cx.another_provider().await?.full_info() == before,
        "a second provider of this configuration says otherwise"
    );
    Ok(())
}
