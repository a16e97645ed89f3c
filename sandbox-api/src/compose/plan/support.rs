//! What a provider can do, asked in the words of a document.

use sandbox_core::{Capability, Field, FieldSupport, ProviderInfo};

use super::{ComposeAllow, PlanOptions};
use crate::compose::{
    model::{ComposeProject, ComposeService},
    report::{FindingClass, Log, Place},
};

/// Makes a plan.
pub(super) struct Planner<'p> {
    pub(super) project: &'p ComposeProject,
    pub(super) info: &'p ProviderInfo,
    pub(super) options: &'p PlanOptions,
    pub(super) log: Log,
}

impl Planner<'_> {
    pub(super) fn has(&self, capability: Capability) -> bool {
        self.info.capabilities.contains(capability)
    }

    /// Whether a field is honoured or emulated.
    pub(super) fn takes(&self, field: Field) -> bool {
        !matches!(self.info.support(field), FieldSupport::Refused(_))
    }

    /// Whether the provider says that it knows an option of this name.
    pub(super) fn takes_option(&self, name: &str) -> bool {
        let known = self.info.fields.get(&format!("provider_options.{name}"));
        known.is_some_and(|support| !matches!(support, FieldSupport::Refused(_)))
    }

    /// True if the field is taken; else says that it is not, at the key that needs it.
    pub(super) fn needs_field(&mut self, service: &ComposeService, key: &str, field: Field) -> bool {
        match self.info.support(field) {
            FieldSupport::Refused(why) => {
                let message = format!("provider {:?} cannot honour {field}: {why}", self.info.name);
                self.unsupported(service.place(key), &service.key(key), message);
                false
            }
            _ => true,
        }
    }

    pub(super) fn unsupported(&mut self, place: Place, key: &str, message: impl Into<String>) {
        let help = "remove it, or choose a provider that can: sandboxctl compose explain --provider NAME,…";
        self.log.error_with_help(place, FindingClass::Unsupported, key, message, help);
    }

    pub(super) fn unsupported_with(&mut self, place: Place, key: &str, message: impl Into<String>, help: &str) {
        self.log.error_with_help(place, FindingClass::Unsupported, key, message, help);
    }

    /// True if something dangerous is allowed; else says that it is refused.
    pub(super) fn allowed(&mut self, service: &ComposeService, key: &str, what: ComposeAllow, why: &str) -> bool {
        if self.options.allows(what) {
            return true;
        }
        let help = format!("if you trust the document, allow it with --allow {}", what.as_str());
        self.log.error_with_help(service.place(key), FindingClass::Security, &service.key(key), why, help);
        false
    }

    /// Options that name a service or a volume that is not there.
    pub(super) fn unknown_options(&self) -> Vec<(&'static str, String)> {
        let services = self.options.images.keys().chain(self.options.service_specs.keys());
        let is_known =
            |name: &String| self.project.services.contains_key(name) || self.project.inactive.contains_key(name);
        services.filter(|name| !is_known(name)).map(|name| ("service", name.clone())).collect()
    }

    pub(super) fn refuse_option(&mut self, kind: &str, name: &str) {
        let message = format!("an option names {kind} {name:?}, which the document does not have");
        self.log.error(Place::default(), FindingClass::Reference, "", message);
    }
}
