//! What a sandbox from the pool is, kept by the engine apart from its container.
//!
//! Labels of a container are fixed when it is made, before anybody knows whose it will be. A volume of the sandbox's id
//! has the same labels instead: any client of the engine sees it, wherever it runs, and nothing is stored in it.

use std::collections::HashMap;

use bollard::{
    models::VolumeCreateRequest,
    query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptionsBuilder},
};
use sandbox_core::Result;

use crate::{engine::Engine, error, labels::Labels, network::ours};

pub(super) async fn write(engine: &Engine, labels: &Labels) -> Result<()> {
    let config = VolumeCreateRequest {
        name: Some(labels.id.clone()),
        labels: Some(labels.to_map()?),
        ..VolumeCreateRequest::default()
    };
    let made = engine.docker().await?.create_volume(config).await;
    made.map(drop).map_err(|error| error::engine("writing down whose the sandbox is", error))
}

/// None for a member of the pool that is no sandbox yet.
pub(crate) async fn read(engine: &Engine, id: &str) -> Result<Option<Labels>> {
    match engine.docker().await?.inspect_volume(id).await {
        Ok(volume) => Ok(Labels::read(&volume.labels)),
        Err(error) if error::is_missing(&error) => Ok(None),
        Err(error) => Err(error::engine("looking whose the sandbox is", error)),
    }
}

/// Every record, by the id of its sandbox.
pub(crate) async fn records(engine: &Engine) -> Result<HashMap<String, Labels>> {
    let options = ListVolumesOptionsBuilder::default().filters(&ours("sandbox")).build();
    let all = engine.docker().await?.list_volumes(Some(options)).await;
    let all = all.map_err(|error| error::engine("listing sandboxes", error))?;
    let read = |volume: bollard::models::Volume| Some((volume.name, Labels::read(&volume.labels)?));
    Ok(all.volumes.unwrap_or_default().into_iter().filter_map(read).collect())
}

/// One that is gone already is fine.
pub(crate) async fn remove(engine: &Engine, id: &str) -> Result<()> {
    let options = RemoveVolumeOptionsBuilder::default().force(false).build();
    match engine.docker().await?.remove_volume(id, Some(options)).await {
        Err(error) if !error::is_missing(&error) => Err(error::engine("removing the sandbox's record", error)),
        _ => Ok(()),
    }
}
