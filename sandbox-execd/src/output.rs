//! What the main process writes is what the container writes.

use std::io::{self, Write};

use sandbox_protocol::{
    Client, LogEvent,
    methods::{self, ExecLogs, ExecLogsAt},
};

/// Passes the output of the main process on until its end.
pub(crate) async fn pass_on(client: Client) {
    let request = ExecLogs { exec_id: methods::ENTRYPOINT_ID.to_owned(), follow: true, ..ExecLogs::default() };
    let Ok((_, mut log)) = client.open_with_reply::<LogEvent, ExecLogsAt>(methods::EXEC_LOGS, &request).await else {
        return;
    };
    while let Ok(Some(event)) = log.next().await {
        // Whoever reads the container's output may be slow: that holds a thread of its own.
        let written = tokio::task::spawn_blocking(move || match event {
            LogEvent::Stdout(bytes) => write(io::stdout().lock(), &bytes),
            LogEvent::Stderr(bytes) => write(io::stderr().lock(), &bytes),
            _ => Ok(()),
        });
        if !matches!(written.await, Ok(Ok(()))) {
            return;
        }
    }
}

fn write(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
