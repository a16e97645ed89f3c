//! Files on their way in: each has a part that says where it goes, and one that is it. It goes into place when it is whole.

use std::{collections::VecDeque, time::Duration};

use http_body_util::BodyExt;
use hyper::{StatusCode, body::Incoming, header::CONTENT_TYPE};
use sandbox_core::{ByteString, ErrorKind, SandboxError, WriteOptions};
use sandbox_protocol::{
    Body,
    methods::{self, BytesMoved, FileWrite},
};
use serde::Deserialize;

use super::{
    metadata::{Names, Permissions},
    multipart::{Head, Splitter, Token},
};
use crate::{
    execd::{Execd, expand},
    http::{self, Answer, Refusal, Request},
};

/// The longest description of a file.
const METADATA_BYTES: usize = 64 * 1024;

/// How long the rest of a form is read that is of no use any more.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);

/// Descriptions that may come before the first of their files.
const WAITING_MAX: usize = 1024;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    path: String,
    #[serde(flatten)]
    permissions: Permissions,
}

fn invalid(code: &'static str, message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, code, message)
}

/// A form that comes.
struct Form {
    body: Incoming,
    splitter: Splitter,
}

impl Form {
    async fn next(&mut self) -> Result<Token, Refusal> {
        loop {
            if let Some(token) = self.splitter.next().map_err(|why| invalid("INVALID_FILE", why))? {
                return Ok(token);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.splitter.push(bytes);
                    }
                }
                _ => return Err(invalid("INVALID_FILE", "the form broke off")),
            }
        }
    }

    /// The whole of a small part.
    async fn small(&mut self) -> Result<Vec<u8>, Refusal> {
        let mut whole = Vec::new();
        loop {
            match self.next().await? {
                Token::Data(bytes) if whole.len() + bytes.len() <= METADATA_BYTES => whole.extend_from_slice(&bytes),
                Token::Data(_) => {
                    return Err(invalid("INVALID_FILE_METADATA", format!("has more than {METADATA_BYTES} bytes")));
                }
                _ => return Ok(whole),
            }
        }
    }
}

pub(super) async fn upload(execd: &Execd, request: Request) -> Answer {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let splitter = Splitter::of(kind).ok_or_else(|| invalid("INVALID_FILE", "the form has no boundary"))?;
    let mut form = Form { body: request.into_body(), splitter };
    let taken = take(execd, &mut form).await;
    // An answer to a request that is still being sent would break the connection, and not be read.
    let _ = tokio::time::timeout(DRAIN_WITHIN, async { while let Some(Ok(_)) = form.body.frame().await {} }).await;
    taken
}

/// Takes every file of a form.
async fn take(execd: &Execd, form: &mut Form) -> Answer {
    let (mut waiting, mut count) = (VecDeque::new(), 0);
    let unpaired = || invalid("INVALID_FILE", "as many parts \"file\" as \"metadata\" are needed, each behind its own");
    loop {
        match form.next().await? {
            Token::Head(Head { name, has_file_name: true }) if name == "metadata" => {
                let text = form.small().await?;
                let metadata = http::parse::<Metadata>(&text)
                    .ok_or_else(|| invalid("INVALID_FILE_METADATA", "the metadata is no JSON of the right form"))?;
                if waiting.len() >= WAITING_MAX {
                    return Err(unpaired());
                }
                waiting.push_back(metadata);
            }
            Token::Head(Head { name, .. }) if name == "file" => {
                let metadata: Metadata = waiting.pop_front().ok_or_else(unpaired)?;
                store(execd, form, metadata).await?;
                count += 1;
            }
            Token::End if waiting.is_empty() && count > 0 => return Ok(http::ok()),
            Token::End => return Err(unpaired()),
            // Parts of other names mean nothing.
            _ => {}
        }
    }
}

async fn store(execd: &Execd, form: &mut Form, metadata: Metadata) -> Result<(), Refusal> {
    let wrong = |why: &str| invalid("INVALID_FILE_METADATA", why);
    let path: ByteString = expand(&metadata.path)?;
    if !path.as_bytes().starts_with(b"/") {
        return Err(wrong("the path must be absolute"));
    }
    let mode = metadata.permissions.mode().map_err(|error| wrong(&error.to_string()))?;
    let (uid, gid) = Names::read().owner(&metadata.permissions);
    let (uid, gid) = (
        uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
        gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
    );
    let options = WriteOptions { mode, owner: Some(format!("{uid}:{gid}")) };
    let (sender, body) = Body::channel();
    let client = execd.client.clone();
    let writing = tokio::spawn(async move {
        let request = FileWrite { path, options };
        client.call_with_body::<BytesMoved>(methods::FILE_WRITE, &request, body).await
    });
    let fed = loop {
        match form.next().await {
            // One that is not taken is told by the answer.
            Ok(Token::Data(bytes)) => drop(sender.send(bytes).await),
            Ok(_) => break Ok(()),
            Err(refusal) => break Err(refusal),
        }
    };
    match &fed {
        Ok(()) => sender.finish().await,
        Err(_) => sender.fail(SandboxError::new(ErrorKind::Unavailable, "the form broke off")).await,
    }
    let written = writing.await.unwrap_or_else(|_| Err(SandboxError::internal("the writer broke")));
    fed?;
    written.map(drop).map_err(|error| Refusal::failed(error.message()))
}
