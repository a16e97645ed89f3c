use std::time::Duration;

use sandbox_api::{PtyChunk, SandboxPtySession};

/// Longer than anything here takes; reached only by a test that fails.
pub(crate) const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

/// The output until it holds a text.
pub(crate) async fn until(session: &SandboxPtySession, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match session.read(PATIENCE).await.unwrap_or_else(|error| panic!("{error} after {seen:?}, not {text:?}")) {
            Some(PtyChunk::Data(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} after {seen:?}, not {text:?}"),
        }
    }
    seen
}

/// Everything to the end, and how many bytes were missing.
pub(crate) async fn rest(session: &SandboxPtySession) -> (Vec<u8>, u64) {
    let (mut output, mut gap) = (Vec::new(), 0);
    while let Some(chunk) = session.read(PATIENCE).await.unwrap() {
        match chunk {
            PtyChunk::Data(bytes) => output.extend_from_slice(&bytes),
            PtyChunk::Gap(bytes) => gap += bytes,
            _ => {}
        }
    }
    (output, gap)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
