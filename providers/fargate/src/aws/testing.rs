//! A service of a test: real HTTP, and answers of a function.

use std::sync::{Arc, Mutex};

use sandbox_core::Secret;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

use super::{Aws, Environment};
use crate::config::{FargateConfig, StaticCredentials};

/// What was asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Ends with its value.
pub(crate) struct Stub {
    port: u16,
    task: AbortHandle,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stub {
    /// Answers each request with a status and a body; status 0 closes the connection without an answer.
    pub(crate) async fn start(answer: impl Fn(&Asked) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (all, answer) = (asked.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (all, answer) = (all.clone(), answer.clone());
                tokio::spawn(async move { serve(stream, &all, &*answer).await });
            }
        })
        .abort_handle();
        Self { port, task, asked }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Settings with which this is asked, by whoever has this key.
    pub(crate) fn config(&self, access_key_id: &str) -> FargateConfig {
        FargateConfig {
            region: Some("us-east-1".into()),
            endpoint_url: Some(self.url()),
            credentials: Some(StaticCredentials {
                access_key_id: access_key_id.into(),
                secret_access_key: Secret::new("s"),
                session_token: None,
            }),
            ..FargateConfig::default()
        }
    }

    /// An AWS that is this, for whoever has this key: who asks is a budget of his own.
    pub(crate) fn aws(&self, access_key_id: &str) -> Aws {
        Aws::new(&self.config(access_key_id), Environment::default()).unwrap()
    }

    /// Everything that was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    all: &Mutex<Vec<Asked>>,
    answer: &(dyn Fn(&Asked) -> (u16, String) + Send + Sync),
) {
    let mut text = Vec::new();
    loop {
        let head_end = loop {
            if let Some(at) = text.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut text).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let head = String::from_utf8_lossy(&text[..head_end]).into_owned();
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut asked = Asked { method, path, headers, body: String::new() };
        let length = asked.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        while text.len() < head_end + length {
            if stream.read_buf(&mut text).await.unwrap_or(0) == 0 {
                return;
            }
        }
        asked.body = String::from_utf8_lossy(&text[head_end..head_end + length]).into_owned();
        text.drain(..head_end + length);
        let (status, body) = answer(&asked);
        all.lock().unwrap().push(asked);
        if status == 0 {
            return;
        }
        let reply = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}
