//! Files that come from a store of objects, or go there, without passing whoever asks for it.

use sandbox_core::{Result, SandboxError};
use sandbox_protocol::{
    Body, StreamResponder,
    methods::{BytesMoved, FileHttpGet, FileHttpPut, FileHttpPutDone, FileWrite},
};

use super::{
    agent::Agent,
    files::work,
    http::Request,
    transfer::{check_mode, open_regular, send},
};

impl Agent {
    pub(super) async fn file_http_get(&self, request: FileHttpGet) -> Result<StreamResponder> {
        let FileHttpGet { path, options, from, size } = request;
        check_mode(&options)?;
        self.place(&path)?;
        let answer = Request::new(from)?.get().await?;
        if answer.length() != size {
            let message = format!("the object has {} bytes, not {size}", answer.length());
            return Err(SandboxError::invalid_state(message));
        }
        let (sender, mut body) = Body::channel();
        tokio::spawn(answer.send_to(sender));
        let bytes = self.write_all(FileWrite { path, options }, &mut body).await?;
        StreamResponder::reply(&BytesMoved { bytes })
    }

    pub(super) async fn file_http_put(&self, request: FileHttpPut) -> Result<StreamResponder> {
        let FileHttpPut { path, to, size_max } = request;
        let (place, to) = (self.place(&path)?, Request::new(to)?);
        let shown = place.shown.clone();
        let (file, stat) = work(move || open_regular(&place)).await?;
        if stat.size > size_max {
            return Err(SandboxError::exhausted(format!("{shown} has {} bytes; at most {size_max}", stat.size)));
        }
        let (sender, body) = Body::channel();
        tokio::spawn(send(file, stat.size, sender, shown));
        to.put(stat.size, body).await?;
        StreamResponder::reply(&FileHttpPutDone { stat: Some(stat) })
    }
}
