//! What the protocol costs: one stream's MB/s and calls per second over a unix socket pair, beside a plain tokio copy of
//! the same bytes in the same run. `cargo run --release -p sandbox-protocol --example throughput`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_core::{PortEvent, PortStream, Result, Session, SessionControl, async_trait, bytes::Bytes};
use sandbox_protocol::{
    Body, Client, ClientOptions, ServerOptions, Service, StreamResponder, serve_halves, unknown_method,
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

const ROUNDS: usize = 9;
const TOTAL: u64 = 256 * 1024 * 1024;
const CHUNK: usize = 64 * 1024;
const CALLS: u32 = 5_000;

struct Bench;

struct NoControl;

#[async_trait]
impl SessionControl for NoControl {
    async fn write(&self, _: Bytes) -> Result<()> {
        Ok(())
    }

    async fn control(&self, _: sandbox_core::ControlRequest) -> Result<sandbox_core::ControlReply> {
        Ok(Default::default())
    }
}

#[async_trait]
impl Service for Bench {
    async fn open(&self, method: &str, request: Value, input: &mut Body) -> Result<StreamResponder> {
        match method {
            "call" => StreamResponder::reply(&request),
            "download" => StreamResponder::body(&(), Body::from_reader(tokio::io::repeat(1).take(TOTAL))),
            "upload" => {
                let mut bytes = 0;
                while let Some(chunk) = input.next().await? {
                    bytes += chunk.len();
                }
                StreamResponder::reply(&bytes)
            }
            "session" | "exec" => {
                let total = if method == "exec" { CHUNK as u64 / 1000 } else { TOTAL };
                let session: PortStream = Session::spawn(NoControl, move |sink| async move {
                    let chunk = Bytes::from(vec![1; total.min(CHUNK as u64) as usize]);
                    for _ in 0..total.div_ceil(CHUNK as u64) {
                        sink.send(PortEvent::Data(chunk.clone())).await;
                    }
                    sink.send(PortEvent::End).await;
                    Ok(())
                });
                Ok(StreamResponder::session(session))
            }
            _ => Err(unknown_method(method)),
        }
    }
}

async fn plain_copy() -> Duration {
    let (mut here, mut there) = UnixStream::pair().expect("a socket pair");
    let start = Instant::now();
    let writing = tokio::spawn(async move {
        let chunk = vec![1; CHUNK];
        for _ in 0..TOTAL / CHUNK as u64 {
            there.write_all(&chunk).await.expect("the reader lives");
        }
    });
    let mut buffer = vec![0; CHUNK];
    while here.read(&mut buffer).await.expect("the writer lives") > 0 {}
    writing.await.expect("the writer ends");
    start.elapsed()
}

async fn plain_round_trips() -> Duration {
    let (mut here, mut there) = UnixStream::pair().expect("a socket pair");
    tokio::spawn(async move {
        let mut buffer = [0; 64];
        while there.read_exact(&mut buffer).await.is_ok() {
            let _ = there.write_all(&buffer).await;
        }
    });
    let mut buffer = [0; 64];
    let start = Instant::now();
    for _ in 0..CALLS {
        here.write_all(&buffer).await.expect("the echo lives");
        here.read_exact(&mut buffer).await.expect("the echo lives");
    }
    start.elapsed()
}

async fn drain_session(client: &Client, method: &str) {
    let mut session = client.open::<PortEvent>(method, &()).await.expect("the session opens");
    while let Some(PortEvent::Data(_)) = session.next().await.expect("the session ends well") {}
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let work = async {
        let (here, there) = UnixStream::pair().expect("a socket pair");
        let options = ServerOptions::default().with_features(["call", "download", "upload", "session", "exec"]);
        let (read, write) = there.into_split();
        // As in a sandbox, the server has a thread of its own.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(serve_halves(read, write, options, Arc::new(Bench)))
        });
        let (read, write) = here.into_split();
        let client = Client::connect_halves(read, write, ClientOptions::default()).await.expect("the handshake");
        let mut times: [Vec<Duration>; 8] = Default::default();
        for _ in 0..ROUNDS {
            times[0].push(plain_copy().await);
            let start = Instant::now();
            let (_, mut body) = client.call_for_body::<Value>("download", &()).await.expect("the download starts");
            while body.next().await.expect("the download goes on").is_some() {}
            times[1].push(start.elapsed());
            let start = Instant::now();
            let body = Body::from_reader(tokio::io::repeat(1).take(TOTAL));
            let _: u64 = client.call_with_body("upload", &(), body).await.expect("the upload works");
            times[2].push(start.elapsed());
            let start = Instant::now();
            drain_session(&client, "session").await;
            times[3].push(start.elapsed());
            times[4].push(plain_round_trips().await);
            let start = Instant::now();
            for _ in 0..CALLS {
                let _: Value = client.call("call", &"x").await.expect("the call works");
            }
            times[5].push(start.elapsed());
            let start = Instant::now();
            for _ in 0..CALLS {
                drain_session(&client, "exec").await;
            }
            times[6].push(start.elapsed());
            let start = Instant::now();
            let mut workers = Vec::new();
            for _ in 0..32 {
                let client = client.clone();
                workers.push(tokio::spawn(async move {
                    for _ in 0..CALLS / 32 {
                        let _: Value = client.call("call", &"x").await.expect("the call works");
                    }
                }));
            }
            for worker in workers {
                worker.await.expect("the worker ends");
            }
            times[7].push(start.elapsed());
        }
        let [copy, down, up, session, trips, calls, execs, parallel] = times.map(median);
        let rate = |seconds: f64| TOTAL as f64 / 1e6 / seconds;
        println!("plain tokio copy            {:8.0} MB/s", rate(copy));
        println!("body, server to client      {:8.0} MB/s  {:.2} x the time", rate(down), down / copy);
        println!("body, client to server      {:8.0} MB/s  {:.2} x the time", rate(up), up / copy);
        println!("session, server to client   {:8.0} MB/s  {:.2} x the time", rate(session), session / copy);
        let each = |seconds: f64| f64::from(CALLS) / seconds;
        println!("plain round trips           {:8.0} /s  {:6.1} us", each(trips), 1e6 / each(trips));
        println!("calls                       {:8.0} /s  {:6.1} us", each(calls), 1e6 / each(calls));
        println!("sessions with 2 events      {:8.0} /s  {:6.1} us", each(execs), 1e6 / each(execs));
        println!("calls, 32 at once           {:8.0} /s", each(parallel));
        println!("held at most                {:8} bytes", client.stats().held_bytes_peak);
    };
    // As callers do, on a worker of the runtime.
    runtime.block_on(async { tokio::spawn(work).await.expect("the measurement ends") });
}
