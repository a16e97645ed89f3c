//! One case: its name, what it proves, what it needs, and its body.

use std::{borrow::Cow, fmt, future::Future, pin::Pin, sync::Arc};

use sandbox_core::{Capability, Field, FieldSupport, ProviderInfo};
use serde::Serialize;

use crate::{check::Check, context::Context};

/// What a provider must declare for a case to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requirement {
    /// A capability.
    Capability(Capability),
    /// A field that is honoured or emulated.
    Field(Field),
    /// A field that is honoured in full. What is emulated may have limits, which its text names.
    Honoured(Field),
}

impl Requirement {
    /// Why the provider does not meet it; none if it does.
    pub fn unmet(self, info: &ProviderInfo) -> Option<String> {
        match self {
            Self::Capability(capability) if info.capabilities.contains(capability) => None,
            Self::Capability(capability) => Some(format!("{capability} is not declared")),
            Self::Field(field) => match info.support(field) {
                FieldSupport::Refused(why) => Some(format!("{field} is refused ({why})")),
                _ => None,
            },
            Self::Honoured(field) => match info.support(field) {
                FieldSupport::Honoured => None,
                FieldSupport::Emulated(how) => Some(format!("{field} is emulated ({how})")),
                _ => Some(format!("{field} is refused")),
            },
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capability(capability) => capability.fmt(f),
            Self::Field(field) | Self::Honoured(field) => field.fmt(f),
        }
    }
}

/// A case as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CaseInfo {
    /// `group.a_sentence_that_can_be_false`.
    pub name: String,
    /// The bullet of the contract, or the failure case, that it proves.
    pub proves: String,
    /// What the provider must declare for it to run.
    pub requires: Vec<String>,
}

type Body = Arc<dyn Fn(Context) -> Pin<Box<dyn Future<Output = Check> + Send>> + Send + Sync>;

/// One case.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: Cow<'static, str>,
    pub(crate) proves: &'static str,
    pub(crate) requires: Vec<Requirement>,
    body: Body,
}

impl Case {
    pub(crate) fn new<F, W>(name: impl Into<Cow<'static, str>>, proves: &'static str, body: F) -> Self
    where
        F: Fn(Context) -> W + Send + Sync + 'static,
        W: Future<Output = Check> + Send + 'static,
    {
        let body: Body = Arc::new(move |context| Box::pin(body(context)));
        Self { name: name.into(), proves, requires: Vec::new(), body }
    }

    pub(crate) fn needs(mut self, capability: Capability) -> Self {
        self.requires.push(Requirement::Capability(capability));
        self
    }

    pub(crate) fn needs_field(mut self, field: Field) -> Self {
        // Which users there are to switch to is the very thing that an emulation limits.
        let in_full = matches!(field, Field::User | Field::ExecUser);
        self.requires.push(if in_full { Requirement::Honoured(field) } else { Requirement::Field(field) });
        self
    }

    pub(crate) fn unmet(&self, info: &ProviderInfo) -> Option<String> {
        self.requires.iter().find_map(|requirement| requirement.unmet(info))
    }

    pub(crate) fn run(&self, context: Context) -> impl Future<Output = Check> + Send + 'static {
        (self.body)(context)
    }

    pub(crate) fn info(&self) -> CaseInfo {
        CaseInfo {
            name: self.name.to_string(),
            proves: self.proves.to_owned(),
            requires: self.requires.iter().map(Requirement::to_string).collect(),
        }
    }
}
