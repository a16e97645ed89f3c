//! A service with one method for each thing that is tested, and ways to connect to it.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sandbox_core::{
    ControlReply, ControlRequest, ErrorKind, PortEvent, PortStream, Result, SandboxError, Session, SessionControl,
    async_trait, bytes::Bytes,
};
use sandbox_protocol::{
    Body, Client, ClientOptions, CloseReason, Frame, FrameKind, FrameReader, ServerOptions, Service, StreamResponder,
    serve, unknown_method,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf},
    sync::mpsc,
    task::JoinHandle,
};

pub const METHODS: &[&str] = &[
    "ping", "echo", "flood", "silent", "upload", "download", "broken", "refuse", "panic", "hang", "unread", "controls",
    "no_input",
];

/// What the service has seen.
#[derive(Default)]
pub struct Seen {
    /// Sessions and calls that are under way.
    pub alive: AtomicUsize,
    pub started: AtomicUsize,
    pub controls: Mutex<Vec<ControlRequest>>,
    pub changed: tokio::sync::Notify,
}

impl Seen {
    pub async fn until(&self, what: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            if what(self) {
                return;
            }
            changed.await;
        }
    }

    pub fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }
}

pub struct Alive(Arc<Seen>);

impl Alive {
    fn new(seen: &Arc<Seen>) -> Self {
        seen.alive.fetch_add(1, Ordering::SeqCst);
        seen.started.fetch_add(1, Ordering::SeqCst);
        seen.changed.notify_waiters();
        Self(seen.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

pub struct TestService(pub Arc<Seen>);

/// Passes input on; remembers control.
struct Control {
    input: mpsc::Sender<Option<Bytes>>,
    seen: Arc<Seen>,
}

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, data: Bytes) -> Result<()> {
        self.input.send(Some(data)).await.map_err(|_| SandboxError::invalid_state("the input is closed"))
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        self.seen.controls.lock().unwrap().push(request.clone());
        self.seen.changed.notify_waiters();
        match request {
            ControlRequest::CloseInput | ControlRequest::Kill => {
                let _ = self.input.send(None).await;
                Ok(ControlReply::default())
            }
            ControlRequest::Signal(64) => std::future::pending().await,
            ControlRequest::Signal(signal) if signal < 0 => Err(SandboxError::invalid_input("signal", "is negative")),
            _ => Ok(ControlReply::default()),
        }
    }
}

impl TestService {
    /// Sends back what comes in.
    fn echo(&self) -> PortStream {
        let (input, mut output) = mpsc::channel(1);
        let alive = Alive::new(&self.0);
        Session::spawn(Control { input, seen: self.0.clone() }, |sink| async move {
            let _alive = alive;
            while let Some(Some(bytes)) = output.recv().await {
                sink.send(PortEvent::Data(bytes)).await;
            }
            sink.send(PortEvent::End).await;
            Ok(())
        })
    }

    /// Sends chunks without end, or so many.
    fn flood(&self, chunk: usize, count: Option<u64>) -> PortStream {
        let (input, output) = mpsc::channel(1);
        let alive = Alive::new(&self.0);
        Session::spawn(Control { input, seen: self.0.clone() }, move |sink| async move {
            let _kept = (alive, output);
            let chunk = Bytes::from(vec![7; chunk]);
            for _ in 0..count.unwrap_or(u64::MAX) {
                if !sink.send(PortEvent::Data(chunk.clone())).await {
                    return Ok(());
                }
            }
            sink.send(PortEvent::End).await;
            Ok(())
        })
    }

    fn silent(&self) -> PortStream {
        let (input, output) = mpsc::channel(1);
        let alive = Alive::new(&self.0);
        Session::spawn(Control { input, seen: self.0.clone() }, move |_sink| async move {
            let _kept = (alive, output);
            std::future::pending().await
        })
    }
}

#[async_trait]
impl Service for TestService {
    async fn open(&self, method: &str, request: Value, input: &mut Body) -> Result<StreamResponder> {
        let number = |key: &str| request.get(key).and_then(Value::as_u64);
        match method {
            "ping" => StreamResponder::reply(&request),
            "echo" => StreamResponder::session_with_reply(&json!({"hello": 1}), self.echo()),
            "flood" => {
                let chunk = number("chunk").unwrap_or(65_536) as usize;
                Ok(StreamResponder::session(self.flood(chunk, number("count"))))
            }
            "silent" | "controls" => Ok(StreamResponder::session(self.silent())),
            "no_input" => {
                let (input, _) = mpsc::channel(1);
                let session = Session::spawn(Control { input, seen: self.0.clone() }, |_sink| std::future::pending());
                Ok(StreamResponder::session::<PortEvent>(session))
            }
            "upload" => {
                let _alive = Alive::new(&self.0);
                let (mut bytes, mut sum) = (0, 0u64);
                while let Some(chunk) = input.next().await? {
                    bytes += chunk.len();
                    sum += chunk.iter().map(|&byte| u64::from(byte)).sum::<u64>();
                }
                StreamResponder::reply(&json!({"bytes": bytes, "sum": sum}))
            }
            "download" => {
                let total = number("bytes").unwrap_or(0);
                let reader = tokio::io::AsyncReadExt::take(tokio::io::repeat(5), total);
                StreamResponder::body(&json!({"bytes": total}), Body::from_reader(reader))
            }
            "broken" => {
                let (sender, body) = Body::channel();
                tokio::spawn(async move {
                    sender.send("start").await;
                    sender.fail(SandboxError::permission_denied("the disk is gone")).await;
                });
                StreamResponder::body(&Value::Null, body)
            }
            "refuse" => Err(SandboxError::invalid_input("path", "is wrong").with_help("take another")),
            "panic" => panic!("a handler that panics"),
            "hang" => {
                let _alive = Alive::new(&self.0);
                std::future::pending().await
            }
            "unread" => Err(SandboxError::new(ErrorKind::Exhausted, "no space")),
            _ => Err(unknown_method(method)),
        }
    }
}

pub fn server_options() -> ServerOptions {
    ServerOptions::default().with_features(METHODS.iter().copied())
}

pub struct Rig {
    pub client: Client,
    pub seen: Arc<Seen>,
    pub server: JoinHandle<CloseReason>,
}

pub async fn rig_over(
    here: impl AsyncRead + AsyncWrite + Send + 'static,
    there: impl AsyncRead + AsyncWrite + Send + 'static,
    options: ServerOptions,
) -> Rig {
    let seen = Arc::new(Seen::default());
    let server = tokio::spawn(serve(there, options, Arc::new(TestService(seen.clone()))));
    let client = Client::connect(here, ClientOptions::default()).await.expect("the handshake works");
    Rig { client, seen, server }
}

/// Over a pipe that holds so many bytes.
pub async fn rig(buffer: usize) -> Rig {
    let (here, there) = tokio::io::duplex(buffer);
    rig_over(here, there, server_options()).await
}

/// A peer that is driven frame by frame.
pub struct RawPeer {
    pub reader: FrameReader<ReadHalf<DuplexStream>>,
    pub writer: WriteHalf<DuplexStream>,
}

impl RawPeer {
    pub fn new(io: DuplexStream) -> Self {
        let (read, writer) = tokio::io::split(io);
        Self { reader: FrameReader::new(read, Duration::from_secs(3600)), writer }
    }

    pub async fn send(&mut self, frame: Frame) {
        self.send_bytes(&frame.encode()).await;
    }

    /// A peer that has been thrown out cannot write any more; what it reads tells.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.writer.write_all(bytes).await;
    }

    pub async fn hello(&mut self) {
        self.send(hello_frame(json!({}))).await;
    }

    pub async fn read(&mut self) -> Option<Frame> {
        self.reader.next().await.unwrap()
    }

    /// The next frame of a kind.
    pub async fn expect(&mut self, kind: FrameKind) -> Frame {
        loop {
            let frame = self.read().await.expect("the connection ended");
            if frame.kind == kind {
                return frame;
            }
        }
    }
}

/// A good HELLO with some keys replaced.
pub fn hello_frame(changes: Value) -> Frame {
    let mut hello = json!({
        "magic": "sandbox-protocol", "generation": 1, "version": "raw", "features": METHODS,
        "limits": {"window_bytes": 262_144, "max_streams": 64},
    });
    for (key, value) in changes.as_object().unwrap() {
        hello[key] = value.clone();
    }
    Frame::new(FrameKind::Hello, 0, serde_json::to_vec(&hello).unwrap())
}

pub fn open_frame(id: u32, method: &str) -> Frame {
    let json = json!({"method": method, "request": {}});
    Frame::new(FrameKind::Open, id, serde_json::to_vec(&json).unwrap())
}

/// A client that is driven by frames, after its handshake.
pub async fn raw_client(options: ServerOptions) -> (RawPeer, Arc<Seen>, JoinHandle<CloseReason>) {
    let (here, there) = tokio::io::duplex(1 << 20);
    let seen = Arc::new(Seen::default());
    let server = tokio::spawn(serve(there, options, Arc::new(TestService(seen.clone()))));
    let mut peer = RawPeer::new(here);
    peer.hello().await;
    peer.expect(FrameKind::Hello).await;
    (peer, seen, server)
}

/// A server that is driven by frames, after its handshake.
pub async fn raw_server(options: ClientOptions) -> (Client, RawPeer) {
    let (here, there) = tokio::io::duplex(1 << 20);
    let connecting = tokio::spawn(Client::connect(here, options));
    let mut peer = RawPeer::new(there);
    peer.expect(FrameKind::Hello).await;
    peer.hello().await;
    (connecting.await.unwrap().unwrap(), peer)
}
