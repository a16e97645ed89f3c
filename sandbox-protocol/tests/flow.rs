//! Credit, fairness and bounds.

mod common;

use std::time::Duration;

use common::{METHODS, Rig, open_frame, raw_client, rig, rig_over, server_options};
use proptest::prelude::*;
use sandbox_core::{ControlRequest, PortEvent, PortStream};
use sandbox_protocol::{Body, FrameKind, limits};
use serde_json::{Value, json};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

async fn flood(rig: &Rig, chunk: usize, count: Option<u64>) -> PortStream {
    rig.client.open("flood", &json!({"chunk": chunk, "count": count})).await.unwrap()
}

/// Until nothing moves any more: what the client holds has not changed over many round trips.
async fn until_stalled(rig: &Rig) {
    let mut before = usize::MAX;
    loop {
        for _ in 0..50 {
            let _: Value = rig.client.call("ping", &1).await.unwrap();
        }
        let held = rig.client.stats().held_bytes;
        if held == before {
            return;
        }
        before = held;
    }
}

#[tokio::test]
async fn a_stalled_reader_stalls_its_own_stream_only() {
    for buffer in [100, 1 << 16] {
        let rig = rig(buffer).await;
        let _stalled = flood(&rig, 65_536, None).await;
        until_stalled(&rig).await;
        let mut other = flood(&rig, 1000, Some(500)).await;
        let mut bytes = 0;
        while let Some(PortEvent::Data(data)) = timeout(LONG, other.next()).await.unwrap().unwrap() {
            bytes += data.len();
        }
        assert_eq!(bytes, 500_000);
    }
}

#[tokio::test]
async fn what_a_connection_holds_is_bounded_by_its_windows() {
    let (here, there) = tokio::net::UnixStream::pair().unwrap();
    let rig = rig_over(here, there, server_options()).await;
    let mut stalled = Vec::new();
    for chunk in [65_536, 65_536, 1, 1, 100, 5000, 65_536, 40_000] {
        stalled.push(flood(&rig, chunk, None).await);
    }
    until_stalled(&rig).await;
    let stats = rig.client.stats();
    assert!(stats.held_bytes_peak <= stalled.len() * limits::WINDOW_BYTES as usize, "{stats:?}");
    assert!(stats.held_bytes > stalled.len() * limits::MIN_WINDOW_BYTES as usize, "the flood was there: {stats:?}");
    drop(stalled);
    rig.seen.until(|seen| seen.alive() == 0).await;
    until_stalled(&rig).await;
    let stats = rig.client.stats();
    assert_eq!((stats.streams, stats.held_bytes), (0, 0));
    assert_eq!((stats.queued_data_bytes, stats.queued_control_bytes), (0, 0));
}

#[tokio::test]
async fn input_that_nobody_takes_stalls_its_writer() {
    let rig = rig(1 << 16).await;
    let session = rig.client.open::<PortEvent>("silent", &Value::Null).await.unwrap();
    let control = session.control();
    let writing = tokio::spawn(async move { control.write(vec![0; 16 << 20].into()).await });
    until_stalled(&rig).await;
    assert!(!writing.is_finished());
    // Control overtakes what waits.
    session.signal(3).await.unwrap();
    let stats = rig.client.stats();
    assert!(stats.queued_data_bytes <= limits::DATA_QUEUE_BYTES as usize, "{stats:?}");
    drop(session);
    assert!(writing.await.unwrap().is_err());
    until_stalled(&rig).await;
    assert_eq!(rig.client.stats().queued_data_bytes, 0);
}

#[tokio::test]
async fn control_overtakes_data_on_a_transport_that_is_full() {
    let (mut peer, seen, _server) = raw_client(server_options()).await;
    peer.send(open_frame(1, "flood")).await;
    peer.expect(FrameKind::Data).await;
    peer.send(open_frame(2, "ping")).await;
    // One window of the flood at most is in front of the answer.
    let mut before = 0;
    loop {
        let frame = peer.read().await.unwrap();
        if frame.kind == FrameKind::Accept && frame.stream == 2 {
            break;
        }
        before += frame.payload.len();
    }
    assert!(before <= limits::WINDOW_BYTES as usize, "{before}");
    assert_eq!(seen.alive(), 1);
}

#[tokio::test]
async fn streams_with_data_take_turns() {
    let rig = rig(4096).await;
    let count = 200;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(flood(&rig, 8192, Some(count)).await);
    }
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut readers = Vec::new();
    for (index, mut session) in sessions.into_iter().enumerate() {
        let order = order.clone();
        readers.push(tokio::spawn(async move {
            while let Some(PortEvent::Data(_)) = session.next().await.unwrap() {
                order.lock().unwrap().push(index);
            }
        }));
    }
    for reader in readers {
        reader.await.unwrap();
    }
    let order = order.lock().unwrap();
    // When the first is done, the others are nearly done: within one window and its queue.
    let mut seen = [0u64; 4];
    for &index in order.iter() {
        seen[index] += 1;
        if seen[index] == count {
            break;
        }
    }
    assert!(seen.iter().all(|&seen| seen >= count / 2), "{seen:?}");
}

#[tokio::test]
async fn more_streams_than_allowed_are_refused_and_none_is_lost() {
    let rig = {
        let (here, there) = tokio::io::duplex(1 << 16);
        rig_over(here, there, server_options().with_max_streams(10)).await
    };
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(rig.client.open::<PortEvent>("silent", &Value::Null).await.unwrap());
    }
    let error = rig.client.call::<Value>("ping", &1).await.unwrap_err();
    assert_eq!(error.kind(), sandbox_core::ErrorKind::Exhausted);
    drop(held.pop());
    // Cancel and open are in order: the place is free at the server, too.
    assert_eq!(rig.client.call::<Value>("ping", &1).await.unwrap(), json!(1));
}

#[tokio::test]
async fn many_short_calls_at_once_all_get_their_own_answer() {
    let (here, there) = tokio::net::UnixStream::pair().unwrap();
    let rig = rig_over(here, there, server_options()).await;
    let calls: Vec<_> = (0..400)
        .map(|number| {
            let client = rig.client.clone();
            tokio::spawn(async move { client.call::<u64>("ping", &number).await })
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), number as u64);
    }
    assert!(METHODS.contains(&"ping"));
}

#[derive(Clone, Debug)]
struct Plan {
    /// Lengths of the writes.
    writes: Vec<usize>,
    is_upload: bool,
    /// Reads this many events, then stops for a round trip.
    pause_after: usize,
}

fn plan() -> impl Strategy<Value = Plan> {
    let writes = proptest::collection::vec(prop_oneof![0..10usize, 1000..5000usize, 60_000..140_000usize], 0..8);
    (writes, any::<bool>(), 0..10usize).prop_map(|(writes, is_upload, pause_after)| Plan {
        writes,
        is_upload,
        pause_after,
    })
}

fn pattern(stream: usize, length: usize, offset: usize) -> Vec<u8> {
    (offset..offset + length).map(|at| (at * 31 + stream * 7 + at / 256) as u8).collect()
}

async fn run_plan(client: &sandbox_protocol::Client, stream: usize, plan: Plan) {
    let total: usize = plan.writes.iter().sum();
    let whole = pattern(stream, total, 0);
    if plan.is_upload {
        let (sender, body) = Body::channel();
        let (parts, bytes) = (plan.writes.clone(), whole.clone());
        tokio::spawn(async move {
            let mut offset = 0;
            for length in parts {
                sender.send(bytes[offset..offset + length].to_vec()).await;
                offset += length;
            }
            sender.finish().await;
        });
        let reply: Value = client.call_with_body("upload", &Value::Null, body).await.unwrap();
        let sum: u64 = whole.iter().map(|&byte| u64::from(byte)).sum();
        assert_eq!(reply, json!({"bytes": total, "sum": sum}));
        return;
    }
    let mut session = client.open::<PortEvent>("echo", &Value::Null).await.unwrap();
    let control = session.control();
    let (parts, bytes) = (plan.writes.clone(), whole.clone());
    let writing = tokio::spawn(async move {
        let mut offset = 0;
        for length in parts {
            control.write(bytes[offset..offset + length].to_vec().into()).await.unwrap();
            offset += length;
        }
        control.control(ControlRequest::CloseInput).await.unwrap();
    });
    let (mut got, mut events) = (Vec::new(), 0);
    while let Some(event) = session.next().await.unwrap() {
        if let PortEvent::Data(bytes) = event {
            got.extend_from_slice(&bytes);
        }
        events += 1;
        if events == plan.pause_after {
            let _: Value = client.call("ping", &1).await.unwrap();
        }
    }
    writing.await.unwrap();
    assert!(got == whole, "stream {stream} changed its bytes");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_stream_gets_its_own_bytes_in_order(
        plans in proptest::collection::vec(plan(), 1..8),
        buffer in prop_oneof![20..100usize, 1000..100_000usize],
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        runtime.block_on(async {
            let rig = rig(buffer).await;
            let streams: Vec<_> = plans.into_iter().enumerate().map(|(stream, plan)| {
                let client = rig.client.clone();
                tokio::spawn(async move { run_plan(&client, stream, plan).await })
            }).collect();
            for stream in streams {
                timeout(LONG, stream).await.expect("a stream got stuck").unwrap();
            }
            let Rig { client, server, .. } = rig;
            assert_eq!(client.stats().streams, 0);
            drop(client);
            server.await.unwrap();
        });
    }
}
