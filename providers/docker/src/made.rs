//! What has to be taken back when the making of a sandbox fails.

use std::path::PathBuf;

use sandbox_core::Result;

use crate::{
    pool::{Draft, Member, remove_record},
    provider::Shared,
    run_folder,
    sandbox::{remove_container, remove_sidecars},
};

/// What a creation has made so far.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) container: bool,
    pub(crate) run_folder: Option<PathBuf>,
    pub(crate) sidecars: Vec<String>,
    pub(crate) holder: Option<Member>,
    pub(crate) has_record: bool,
    pub(crate) draft: Option<Draft>,
}

impl Made {
    /// Removes all of it.
    ///
    /// # Errors
    /// What the engine failed with; what is left is found by its labels.
    pub(crate) async fn take_back(&mut self, shared: &Shared) -> Result<()> {
        let engine = &shared.engine;
        if self.container {
            remove_sidecars(engine, &self.id, &self.sidecars).await?;
            remove_container(engine, &self.id).await?;
        }
        if let Some(holder) = &self.holder {
            holder.remove(engine).await?;
        }
        if self.has_record {
            remove_record(engine, &self.id).await?;
        }
        if let Some(folder) = self.run_folder.take() {
            run_folder::remove(folder, self.id.clone()).await?;
        }
        Ok(())
    }
}
