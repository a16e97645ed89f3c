//! Where the provider under test comes from.

use std::{future::Future, sync::Arc};

use sandbox_core::{Result, SandboxProvider, SandboxSpec};

/// Makes the provider under test.
#[sandbox_core::async_trait]
pub trait ProviderFactory: Send + Sync + 'static {
    /// A fresh provider. Each call gives another one, with the same configuration: to the second one the first is
    /// another process.
    ///
    /// # Errors
    /// Whatever keeps the provider from being made; the run fails then.
    async fn create(&self) -> Result<Arc<dyn SandboxProvider>>;

    /// What every sandbox of the run is made from: an image for a provider that needs one, nothing for others. The
    /// image needs a POSIX shell and the usual small programs (`cat`, `sleep`, `seq`, `cksum`, …); what else a case
    /// needs it looks for, and is skipped when it is not there.
    fn spec(&self) -> SandboxSpec {
        SandboxSpec::default()
    }
}

/// A factory made of a closure; see [`factory`].
#[derive(Debug)]
pub struct FnFactory<F> {
    create: F,
    spec: SandboxSpec,
}

/// A factory out of an async closure.
pub fn factory<F, W>(create: F) -> FnFactory<F>
where
    F: Fn() -> W + Send + Sync + 'static,
    W: Future<Output = Result<Arc<dyn SandboxProvider>>> + Send + 'static,
{
    FnFactory { create, spec: SandboxSpec::default() }
}

impl<F> FnFactory<F> {
    /// Sets what every sandbox is made from.
    #[must_use]
    pub fn with_spec(mut self, spec: SandboxSpec) -> Self {
        self.spec = spec;
        self
    }
}

#[sandbox_core::async_trait]
impl<F, W> ProviderFactory for FnFactory<F>
where
    F: Fn() -> W + Send + Sync + 'static,
    W: Future<Output = Result<Arc<dyn SandboxProvider>>> + Send + 'static,
{
    async fn create(&self) -> Result<Arc<dyn SandboxProvider>> {
        (self.create)().await
    }

    fn spec(&self) -> SandboxSpec {
        self.spec.clone()
    }
}
