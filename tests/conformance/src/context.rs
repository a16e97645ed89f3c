//! What a case is given: the provider, and sandboxes that are taken away again afterwards.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandbox_core::{
    Field, FieldSupport, ListFilter, ProviderInfo, Result, SandboxHandle, SandboxProvider, SandboxSpec, SandboxStatus,
};

use crate::{
    ProviderFactory,
    bytes::token,
    check::{Check, Stop},
    host::{eventually, identity, this_process, within},
    leak::{TOKEN_VARIABLE, survivors},
    sandbox::TestSandbox,
};

/// How long one close or status may take.
const CLOSE_WITHIN: Duration = Duration::from_secs(20);

/// What a case is given. A clone is the same context.
#[derive(Clone)]
pub(crate) struct Context(Arc<Inner>);

struct Inner {
    provider: Arc<dyn SandboxProvider>,
    factory: Arc<dyn ProviderFactory>,
    info: ProviderInfo,
    token: String,
    temp: tempfile::TempDir,
    made: Mutex<Vec<SandboxHandle>>,
}

impl Context {
    pub(crate) fn new(
        provider: Arc<dyn SandboxProvider>,
        factory: Arc<dyn ProviderFactory>,
        info: ProviderInfo,
    ) -> std::io::Result<Self> {
        let temp = tempfile::Builder::new().prefix("sandbox-conformance-").tempdir()?;
        Ok(Self(Arc::new(Inner { provider, factory, info, token: token(), temp, made: Mutex::default() })))
    }

    pub(crate) fn provider(&self) -> &Arc<dyn SandboxProvider> {
        &self.0.provider
    }

    pub(crate) fn info(&self) -> &ProviderInfo {
        &self.0.info
    }

    /// Unique for this case.
    pub(crate) fn token(&self) -> &str {
        &self.0.token
    }

    /// A folder of this host, for this case alone.
    pub(crate) fn temp(&self) -> &Path {
        self.0.temp.path()
    }

    /// A path for a file in that folder.
    pub(crate) fn local(&self, name: &str) -> PathBuf {
        self.0.temp.path().join(name)
    }

    /// Another provider with the same configuration, as another process would have it.
    pub(crate) async fn another_provider(&self) -> Result<Arc<dyn SandboxProvider>> {
        self.0.factory.create().await
    }

    pub(crate) fn honours(&self, field: Field) -> bool {
        !matches!(self.0.info.support(field), FieldSupport::Refused(_))
    }

    /// True if the sandbox's processes and files are this host's.
    pub(crate) fn shares_the_host(&self) -> bool {
        self.0.info.isolation == "none"
    }

    /// The base spec, marked as this case's.
    pub(crate) fn spec(&self) -> SandboxSpec {
        let mut spec = self.0.factory.spec();
        if self.honours(Field::Env) {
            spec.env.insert(TOKEN_VARIABLE, self.token());
        }
        if spec.workdir.is_none() && self.honours(Field::Workdir) && !self.shares_the_host() {
            // The default may be `/`, where names of the cases may be taken.
            spec.workdir = Some(format!("/conformance-work-{}", self.token()));
        }
        spec.identity = Some(identity(self.token(), this_process()));
        spec
    }

    /// An absolute folder that is not there yet, for use as a workdir.
    pub(crate) fn absent_workdir(&self) -> String {
        if self.shares_the_host() {
            self.local("made/for/the/sandbox").to_string_lossy().into_owned()
        } else {
            format!("/conformance-{}/deep", self.token())
        }
    }

    /// A sandbox of the base spec.
    pub(crate) async fn sandbox(&self) -> Check<TestSandbox> {
        self.sandbox_with(self.spec()).await
    }

    /// A sandbox of this spec, checked first as a host does. Skips the case when a field is refused.
    pub(crate) async fn sandbox_with(&self, spec: SandboxSpec) -> Check<TestSandbox> {
        spec.validate()?;
        self.info().check_spec(&spec).map_err(|error| Stop::skipped(error.message()))?;
        let handle = self.provider().create(spec).await?;
        Ok(self.adopt(handle))
    }

    /// Takes care of a sandbox that was made by other means.
    pub(crate) fn adopt(&self, handle: SandboxHandle) -> TestSandbox {
        self.made().push(handle.clone());
        TestSandbox::new(self.clone(), handle)
    }

    fn made(&self) -> MutexGuard<'_, Vec<SandboxHandle>> {
        self.0.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the provider still lists a sandbox of this case.
    pub(crate) async fn is_listed(&self) -> Result<bool> {
        let Some(list) = self.provider().as_list_sweep() else { return Ok(false) };
        let filter = ListFilter { run_id: Some(self.token().to_owned()), ..Default::default() };
        let records = list.list(filter).await?;
        Ok(records.iter().any(|record| record.status != SandboxStatus::Stopped))
    }

    /// Fails unless nothing of this case is left.
    pub(crate) async fn ensure_nothing_is_left(&self) -> Check {
        if self.shares_the_host() && self.honours(Field::Env) {
            let pids = survivors(self.token()).await;
            ensure!(pids.is_empty(), "processes outlived their sandbox: {pids:?}");
        }
        let is_unlisted = async || self.is_listed().await.is_ok_and(|is_listed| !is_listed);
        ensure!(eventually(Duration::from_secs(2), is_unlisted).await, "a closed sandbox is still listed");
        Ok(())
    }

    /// Closes every sandbox of the case and looks for what is left.
    pub(crate) async fn finish(&self) -> Check {
        let made = std::mem::take(&mut *self.made());
        let mut first = Ok(());
        for handle in &made {
            let end = self.finish_one(handle).await;
            first = first.and(end);
        }
        first?;
        self.ensure_nothing_is_left().await
    }

    async fn finish_one(&self, handle: &SandboxHandle) -> Check {
        within(CLOSE_WITHIN, "close", self.provider().close(handle)).await??;
        let status = within(CLOSE_WITHIN, "status", self.provider().status(handle)).await??;
        ensure_eq!(status, SandboxStatus::Stopped, "status after close");
        Ok(())
    }
}
