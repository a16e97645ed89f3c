//! The commands about sandboxes that outlive this program.

pub(crate) mod cp;
pub(crate) mod create;
pub(crate) mod exec;
pub(crate) mod gc;
pub(crate) mod jobs;
pub(crate) mod lifecycle;
pub(crate) mod ls;
pub(crate) mod shell;
pub(crate) mod stats;
pub(crate) mod stop;

use plugin_host::PluginHost;
use sandbox_api::AsyncSandbox;

use crate::{
    app::App,
    config::Config,
    failure::Failure,
    providers,
    state::{Saved, Store},
};

/// Where sandboxes are found.
pub(crate) struct Finder {
    pub(crate) config: Config,
    pub(crate) host: PluginHost,
    pub(crate) store: Store,
}

impl Finder {
    pub(crate) fn new(app: &App) -> Result<Self, Failure> {
        let config = app.config()?;
        let host = providers::host(&config)?;
        Ok(Self { config, host, store: Store::open()? })
    }

    /// The sandbox of a name, an id or the beginning of one.
    pub(crate) async fn find(&self, word: &str) -> Result<(Saved, AsyncSandbox), Failure> {
        let saved = self.store.find(word)?;
        let sandbox = self.connect(&saved).await?;
        Ok((saved, sandbox))
    }

    pub(crate) async fn connect(&self, saved: &Saved) -> Result<AsyncSandbox, Failure> {
        let provider = providers::create(&self.host, &self.config, &saved.provider)?;
        AsyncSandbox::connect(provider, saved.descriptor.clone()).await.map_err(|error| {
            let failure = Failure::of_command(&error);
            match error.kind() {
                sandbox_core::ErrorKind::NotFound => {
                    failure.with_help("it is gone; forget what is left of it with: sandboxctl gc")
                }
                _ => failure,
            }
        })
    }
}

/// A sandbox, as an argument.
#[derive(clap::Args)]
pub(crate) struct SandboxArg {
    /// Its name, its id, or the beginning of one
    #[arg(value_name = "SANDBOX")]
    pub(crate) sandbox: String,
}
