//! What a provider can do is checked here and nowhere else, before anything reaches it.

use sandbox_core::{Capability, ExecRequest, Field, FieldSupport, ProviderInfo, Result, SandboxError, SandboxSpec};

/// Checks a spec: capabilities that it needs, then every field that it sets.
pub(crate) fn check_spec(info: &ProviderInfo, spec: &SandboxSpec) -> Result<()> {
    if !spec.sidecars.is_empty() && !info.capabilities.contains(Capability::Sidecars) {
        return Err(SandboxError::unsupported(&info.name, Capability::Sidecars));
    }
    info.check_spec(spec)
}

/// Checks a command as its caller wrote it, before defaults are filled in.
pub(crate) fn check_exec(info: &ProviderInfo, request: &ExecRequest) -> Result<()> {
    info.check_exec(request)
}

/// Whether a default may be filled in for a field. A caller who did not ask for it gets no refusal because of it.
pub(crate) fn takes_default(info: &ProviderInfo, field: Field) -> bool {
    !matches!(info.support(field), FieldSupport::Refused(_))
}

/// Refuses a field by the provider's own reason.
pub(crate) fn require_field(info: &ProviderInfo, field: Field) -> Result<()> {
    match info.support(field) {
        FieldSupport::Refused(why) => Err(SandboxError::unsupported_field(&info.name, field.as_str(), why)),
        _ => Ok(()),
    }
}

/// The interface of a capability, or the refusal that names the provider and the capability.
pub(crate) fn require<'a, T: ?Sized>(
    provider: &str,
    interface: Option<&'a T>,
    capability: Capability,
) -> Result<&'a T> {
    interface.ok_or_else(|| SandboxError::unsupported(provider, capability))
}
