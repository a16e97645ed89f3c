//! Peers that lie, stop, flood or are of another release.

mod common;

use std::{sync::Arc, time::Duration};

use common::{Seen, TestService, hello_frame, open_frame, raw_client, raw_server, server_options};
use proptest::{collection::vec, prelude::*, sample::select};
use sandbox_core::{Admitted, ErrorKind, PortEvent, Secret};
use sandbox_protocol::{
    Client, ClientOptions, CloseCause, CloseReason, FLAG_END, FLAG_MORE, Frame, FrameKind, KeepAlive, Violation,
    limits, serve,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn credit(stream: u32, bytes: u32) -> Frame {
    Frame::new(FrameKind::Credit, stream, bytes.to_le_bytes().to_vec())
}

fn data(stream: u32, length: usize) -> Frame {
    Frame::new(FrameKind::Data, stream, vec![1; length])
}

/// A client that sends these frames is thrown out for this reason, and is told.
async fn is_thrown_out(frames: Vec<Frame>, violation: Violation) {
    let (mut peer, seen, server) = raw_client(server_options()).await;
    for frame in frames {
        peer.send(frame).await;
    }
    let reason = server.await.unwrap();
    assert_eq!(reason.cause(), CloseCause::Protocol(violation));
    assert!(!peer.expect(FrameKind::Goodbye).await.payload.is_empty());
    assert_eq!(seen.alive(), 0);
}

#[tokio::test]
async fn a_client_that_breaks_the_protocol_is_thrown_out() {
    let full = limits::MAX_DATA_BYTES;
    is_thrown_out(vec![data(5, 1)], Violation::UnknownStream(5)).await;
    is_thrown_out(vec![credit(1, 1)], Violation::UnknownStream(1)).await;
    is_thrown_out(vec![open_frame(3, "silent"), open_frame(3, "silent")], Violation::ReusedStream(3)).await;
    is_thrown_out(vec![open_frame(3, "silent"), open_frame(2, "silent")], Violation::ReusedStream(2)).await;
    is_thrown_out(vec![open_frame(1, "silent"), credit(1, 1)], Violation::CreditLie(1)).await;
    is_thrown_out(vec![open_frame(1, "silent"), credit(1, u32::MAX)], Violation::CreditLie(1)).await;
    let overrun = [vec![open_frame(1, "hang")], vec![data(1, full); 5]].concat();
    is_thrown_out(overrun, Violation::CreditOverrun(1)).await;
    // Empty frames are not free.
    let overrun = [vec![open_frame(1, "hang")], vec![data(1, 0); 5000]].concat();
    is_thrown_out(overrun, Violation::CreditOverrun(1)).await;
    let after = vec![open_frame(1, "hang"), data(1, 1).with_flags(FLAG_END), data(1, 1)];
    is_thrown_out(after, Violation::DataAfterEnd(1)).await;
    is_thrown_out(vec![hello_frame(json!({}))], Violation::Unexpected(1)).await;
    is_thrown_out(vec![Frame::new(FrameKind::Accept, 1, "{}")], Violation::Unexpected(6)).await;
    let garbage = vec![Frame::new(FrameKind::Open, 1, "nonsense")];
    is_thrown_out(garbage, Violation::BadFrame("an OPEN that is not JSON")).await;
    let short = vec![open_frame(1, "hang"), Frame::new(FrameKind::Credit, 1, "x")];
    is_thrown_out(short, Violation::BadFrame("credit without a number")).await;
    let control = Frame::new(FrameKind::Control, 1, r#"{"number":1,"request":{"signal":64}}"#);
    is_thrown_out([vec![open_frame(1, "controls")], vec![control; 33]].concat(), Violation::Flood).await;
}

#[tokio::test]
async fn a_server_that_breaks_the_protocol_fails_every_stream() {
    let full = limits::MAX_DATA_BYTES;
    let accept = |id| Frame::new(FrameKind::Accept, id, "{}");
    let cases = [
        (vec![data(9, 1)], Violation::UnknownStream(9)),
        (vec![accept(9)], Violation::UnknownStream(9)),
        (vec![data(1, 1)], Violation::Unexpected(8)),
        (vec![accept(1), accept(1)], Violation::Unexpected(6)),
        (vec![accept(1), credit(1, 1)], Violation::CreditLie(1)),
        ([vec![accept(1)], vec![data(1, full).with_channel(1); 60]].concat(), Violation::CreditOverrun(1)),
        (vec![open_frame(1, "x")], Violation::Unexpected(5)),
        (vec![accept(1), Frame::new(FrameKind::Reply, 1, "?")], Violation::BadFrame("a REPLY that is not JSON")),
    ];
    for (frames, violation) in cases {
        let (client, mut peer) = raw_server(ClientOptions::default()).await;
        let asking = client.clone();
        let session = tokio::spawn(async move { asking.open::<PortEvent>("silent", &Value::Null).await });
        peer.expect(FrameKind::Open).await;
        for frame in frames {
            peer.send(frame).await;
        }
        assert_eq!(client.closed().await.cause(), CloseCause::Protocol(violation));
        if let Ok(mut session) = session.await.unwrap() {
            let error = loop {
                match session.next().await {
                    Ok(event) => assert!(matches!(event, Some(PortEvent::Data(_)))),
                    Err(error) => break error,
                }
            };
            assert_eq!((error.kind(), error.admitted()), (ErrorKind::Lost, Some(Admitted::Yes)));
        }
    }
}

#[tokio::test]
async fn late_frames_of_streams_that_are_over_are_ignored() {
    let (mut peer, seen, _server) = raw_client(server_options()).await;
    peer.send(open_frame(1, "ping").with_flags(FLAG_END)).await;
    peer.expect(FrameKind::Accept).await;
    peer.send(open_frame(2, "silent")).await;
    peer.expect(FrameKind::Accept).await;
    peer.send(Frame::new(FrameKind::Cancel, 2, "")).await;
    for id in [1, 2] {
        peer.send(data(id, 100)).await;
        peer.send(credit(id, 100)).await;
        peer.send(Frame::new(FrameKind::Control, id, "{}")).await;
        peer.send(Frame::new(FrameKind::Cancel, id, "")).await;
    }
    peer.send(open_frame(3, "ping")).await;
    assert_eq!(peer.expect(FrameKind::Accept).await.stream, 3);
    seen.until(|seen| seen.alive() == 0).await;
}

#[tokio::test]
async fn a_flood_of_opens_is_refused_and_bounded() {
    let (mut peer, seen, server) = raw_client(server_options().with_max_streams(8)).await;
    for id in 1..=20 {
        peer.send(open_frame(id, "silent")).await;
    }
    let (mut accepted, mut refused) = (0, 0);
    while accepted + refused < 20 {
        match peer.read().await.unwrap() {
            frame if frame.kind == FrameKind::Accept => accepted += 1,
            frame if frame.kind == FrameKind::Refuse => {
                let error: Value = serde_json::from_slice(&frame.payload).unwrap();
                assert_eq!(error["kind"], ErrorKind::Exhausted.code());
                refused += 1;
            }
            _ => {}
        }
    }
    assert_eq!((accepted, refused), (8, 12));
    assert_eq!(seen.alive(), 8);
    drop(peer);
    server.await.unwrap();
    assert_eq!(seen.alive(), 0);
}

#[tokio::test]
async fn a_flood_of_opens_whose_refusals_nobody_reads_ends_the_connection() {
    let (here, there) = tokio::io::duplex(512);
    let server = tokio::spawn(serve(
        there,
        server_options().with_max_streams(4),
        Arc::new(TestService(Arc::new(Seen::default()))),
    ));
    let mut peer = common::RawPeer::new(here);
    peer.hello().await;
    for id in 1.. {
        if peer.writer.write_all(&open_frame(id, "silent").encode()).await.is_err() {
            break;
        }
        assert!(id < 100_000, "the flood has no end");
    }
    assert_eq!(server.await.unwrap().cause(), CloseCause::Protocol(Violation::Flood));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_is_given_up() {
    let (here, there) = tokio::io::duplex(512);
    let seen = Arc::new(Seen::default());
    let server = tokio::spawn(serve(there, server_options(), Arc::new(TestService(seen.clone()))));
    let mut peer = common::RawPeer::new(here);
    peer.hello().await;
    peer.expect(FrameKind::Hello).await;
    peer.send(open_frame(1, "flood")).await;
    // It goes on talking, but never reads.
    let talking = async {
        loop {
            peer.send(Frame::new(FrameKind::Ping, 0, vec![0; 8])).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        reason = server => assert_eq!(reason.unwrap().cause(), CloseCause::Idle),
        () = talking => {}
    }
    assert_eq!(seen.alive(), 0);
}

#[tokio::test]
async fn a_peer_that_dies_within_a_frame_is_a_broken_one() {
    let (mut peer, seen, server) = raw_client(server_options()).await;
    peer.send(open_frame(1, "hang")).await;
    seen.until(|seen| seen.alive() == 1).await;
    let bytes = data(1, 1000).encode();
    peer.send_bytes(&bytes[..500]).await;
    drop(peer);
    assert_eq!(server.await.unwrap().cause(), CloseCause::Protocol(Violation::Truncated));
    assert_eq!(seen.alive(), 0);
}

#[tokio::test]
async fn an_upload_that_is_cut_off_with_its_connection_is_no_end_of_input() {
    let (mut peer, seen, server) = raw_client(server_options()).await;
    peer.send(open_frame(1, "silent")).await;
    peer.expect(FrameKind::Accept).await;
    peer.send(data(1, 10)).await;
    drop(peer);
    server.await.unwrap();
    let controls = seen.controls.lock().unwrap();
    assert_eq!(*controls, [sandbox_core::ControlRequest::Detach]);
}

#[tokio::test]
async fn events_in_parts_are_joined_and_too_large_ones_lost() {
    let (client, mut peer) = raw_server(ClientOptions::default()).await;
    let opening = client.clone();
    let session = tokio::spawn(async move { opening.open::<PortEvent>("silent", &Value::Null).await });
    peer.expect(FrameKind::Open).await;
    peer.send(Frame::new(FrameKind::Accept, 1, "{}")).await;
    let mut session = session.await.unwrap().unwrap();
    for flags in [FLAG_MORE, FLAG_MORE, 0] {
        peer.send(data(1, 1000).with_channel(1).with_flags(flags)).await;
    }
    // A channel of a newer peer is skipped.
    peer.send(data(1, 5).with_channel(77)).await;
    let Some(PortEvent::Data(bytes)) = session.next().await.unwrap() else { panic!("no data") };
    assert_eq!(bytes.len(), 3000);
    let mut credited = 0;
    loop {
        peer.send(data(1, 60_000).with_channel(1).with_flags(FLAG_MORE)).await;
        credited += 1;
        if credited * 60_000 > limits::MAX_EVENT_BYTES {
            break;
        }
        if credited % 3 == 0 {
            peer.expect(FrameKind::Credit).await;
        }
    }
    assert_eq!(session.next().await.unwrap_err().kind(), ErrorKind::Lost);
    drop(session);
    peer.expect(FrameKind::Cancel).await;
}

#[tokio::test]
async fn controls_whose_replies_nobody_reads_are_bounded() {
    let (here, there) = tokio::io::duplex(512);
    let seen = Arc::new(Seen::default());
    let server = tokio::spawn(serve(there, server_options(), Arc::new(TestService(seen.clone()))));
    let mut peer = common::RawPeer::new(here);
    peer.hello().await;
    peer.expect(FrameKind::Hello).await;
    peer.send(open_frame(1, "controls")).await;
    let control = Frame::new(FrameKind::Control, 1, r#"{"number":1,"request":{"signal":1}}"#).encode();
    for sent in 0.. {
        if peer.writer.write_all(&control).await.is_err() {
            break;
        }
        assert!(sent < 1000, "the flood has no end");
    }
    assert_eq!(server.await.unwrap().cause(), CloseCause::Protocol(Violation::Flood));
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let payloads = [
        r#"{"method":"echo"}"#,
        r#"{"method":"flood","request":{"chunk":100}}"#,
        r#"{"method":"upload"}"#,
        r#"{"method":"ping","request_bytes":3}"#,
        r#"{"method":"silent"}"#,
        r#"{"number":1,"request":"kill"}"#,
        r#"{"number":2,"request":{"new":1}}"#,
        "{}",
        "",
        "abcd",
        r#"{"reply":1}"#,
        r#"{"kind":3}"#,
    ];
    let kinds: Vec<FrameKind> =
        FrameKind::ALL.iter().copied().filter(|kind| !matches!(kind, FrameKind::Hello | FrameKind::Goodbye)).collect();
    (
        select(kinds),
        1..6u32,
        select(&[0, 1, 2, 9][..]),
        select(&[0, FLAG_MORE, FLAG_END][..]),
        select(payloads.to_vec()),
    )
        .prop_map(|(kind, stream, channel, flags, payload)| {
            let stream = if matches!(kind, FrameKind::Ping | FrameKind::Pong) { 0 } else { stream };
            Frame::new(kind, stream, payload).with_channel(channel).with_flags(flags)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_frames_come_a_server_ends_with_its_peer(frames in vec(any_frame(), 0..40)) {
        runtime().block_on(async {
            let (mut peer, seen, server) = raw_client(server_options()).await;
            for frame in frames {
                peer.send(frame).await;
            }
            drop(peer);
            tokio::time::timeout(Duration::from_secs(20), server).await.expect("it hangs").unwrap();
            assert_eq!(seen.alive(), 0);
        });
    }

    #[test]
    fn whatever_frames_come_a_client_ends_with_its_peer(frames in vec(any_frame(), 0..40)) {
        runtime().block_on(async {
            let (client, mut peer) = raw_server(ClientOptions::default()).await;
            let calls: Vec<_> = (0..3).map(|index| {
                let client = client.clone();
                tokio::spawn(async move {
                    if index == 0 {
                        let mut session = client.open::<PortEvent>("echo", &1).await?;
                        let _ = session.write("abc").await;
                        while session.next().await?.is_some() {}
                    } else {
                        client.call::<Value>("ping", &1).await?;
                    }
                    Ok::<(), sandbox_core::SandboxError>(())
                })
            }).collect();
            peer.expect(FrameKind::Open).await;
            for frame in frames {
                peer.send(frame).await;
            }
            drop(peer);
            for call in calls {
                let _ = tokio::time::timeout(Duration::from_secs(20), call).await.expect("it hangs").unwrap();
            }
            client.closed().await;
            assert_eq!(client.stats().streams, 0);
        });
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

async fn connect_to(hello: Frame) -> Result<Client, sandbox_core::SandboxError> {
    let (here, there) = tokio::io::duplex(1 << 16);
    let connecting = tokio::spawn(Client::connect(here, ClientOptions::default()));
    let mut peer = common::RawPeer::new(there);
    peer.expect(FrameKind::Hello).await;
    peer.send(hello).await;
    connecting.await.unwrap()
}

#[tokio::test]
async fn an_older_peer_is_refused_and_a_newer_one_speaks_our_generation() {
    let error = connect_to(hello_frame(json!({"generation": 0}))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let client = connect_to(hello_frame(json!({"generation": 9, "features": ["ping"]}))).await.unwrap();
    assert_eq!(client.peer().generation(), 1);
    assert_eq!(client.call::<Value>("echo", &1).await.unwrap_err().kind(), ErrorKind::Unsupported);
    let error = connect_to(hello_frame(json!({"limits": {"window_bytes": 1}}))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = connect_to(Frame::new(FrameKind::Hello, 0, "{}")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = connect_to(open_frame(1, "ping")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

async fn serve_with_token(first: Vec<u8>) -> (CloseReason, Vec<u8>) {
    let (mut here, there) = tokio::io::duplex(1 << 20);
    let options = server_options().with_token(Secret::new("open sesame"));
    let server = tokio::spawn(serve(there, options, Arc::new(TestService(Arc::new(Seen::default())))));
    here.write_all(&first).await.unwrap();
    let reason = server.await.unwrap();
    let mut said = Vec::new();
    here.read_to_end(&mut said).await.unwrap();
    (reason, said)
}

#[tokio::test]
async fn without_the_right_token_a_client_learns_nothing() {
    for token in [json!(null), json!("wrong"), json!("open sesam"), json!("open sesame!")] {
        let (reason, said) = serve_with_token(hello_frame(json!({"token": token})).encode()).await;
        assert_eq!(reason.cause(), CloseCause::Refused(ErrorKind::Unauthorized));
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("token") && !said.contains("features") && !said.contains("sesame"), "{said}");
    }
    // A large first frame, another kind, an unknown kind: refused from the header, in silence.
    let mut large = hello_frame(json!({})).header();
    large[..4].copy_from_slice(&20_000u32.to_le_bytes());
    let mut unknown = open_frame(1, "ping").encode();
    unknown[8] = 99;
    for first in [large.to_vec(), open_frame(1, "ping").encode(), unknown, b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
        let (reason, said) = serve_with_token(first).await;
        assert_eq!(reason.cause(), CloseCause::Protocol(Violation::NotHello));
        assert!(said.is_empty());
    }
}

#[tokio::test]
async fn the_right_token_lets_a_client_in_and_a_wrong_one_tells_it_so() {
    for (token, is_good) in [("open sesame", true), ("open", false)] {
        let (here, there) = tokio::io::duplex(1 << 16);
        let options = server_options().with_token(Secret::new("open sesame"));
        tokio::spawn(serve(there, options, Arc::new(TestService(Arc::new(Seen::default())))));
        let result = Client::connect(here, ClientOptions::default().with_token(Secret::new(token))).await;
        match result {
            Ok(client) => assert!(is_good && client.call::<Value>("ping", &1).await.is_ok()),
            Err(error) => assert!(!is_good && error.kind() == ErrorKind::Unauthorized, "{error:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stranger_that_says_nothing_is_thrown_out_in_time() {
    let (here, there) = tokio::io::duplex(64);
    let start = tokio::time::Instant::now();
    let reason = serve(there, server_options(), Arc::new(TestService(Arc::new(Seen::default())))).await;
    assert_eq!(reason.cause(), CloseCause::Idle);
    assert_eq!(start.elapsed().as_secs(), limits::HANDSHAKE_LIMIT.as_secs());
    drop(here);
    let (here, _there) = tokio::io::duplex(64);
    let error = Client::connect(here, ClientOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_lost_at_the_idle_limit() {
    let (client, mut peer) = raw_server(ClientOptions::default()).await;
    let start = tokio::time::Instant::now();
    assert_eq!(client.closed().await.cause(), CloseCause::Idle);
    let after = start.elapsed();
    assert!(after >= limits::IDLE_LIMIT && after < limits::IDLE_LIMIT + Duration::from_secs(1), "{after:?}");
    // It was asked all the time.
    let mut pings = 0;
    while let Some(frame) = peer.read().await {
        pings += u32::from(frame.kind == FrameKind::Ping);
    }
    assert!(pings >= 10, "{pings}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_command_keeps_its_connection_for_a_day() {
    let keep_alive = KeepAlive::new(Some(Duration::from_secs(4)), Duration::from_secs(5));
    let rig = {
        let (here, there) = tokio::io::duplex(100);
        common::rig_over(here, there, server_options().with_keep_alive(keep_alive)).await
    };
    let mut session = rig.client.open::<PortEvent>("silent", &Value::Null).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_secs(86_400), session.next()).await;
    assert!(waiting.is_err(), "the session ended: {waiting:?}");
    assert!(rig.client.close_reason().is_none());
}

#[tokio::test]
async fn the_last_words_of_a_server_are_heard_although_writing_fails() {
    let (client, mut peer) = raw_server(ClientOptions::default()).await;
    let error = json!({"kind": ErrorKind::InvalidState.code(), "message": "this incarnation is over"});
    peer.send(Frame::new(FrameKind::Goodbye, 0, serde_json::to_vec(&error).unwrap())).await;
    drop(peer);
    let _ = client.call::<Value>("ping", &1).await.unwrap_err();
    let reason = client.closed().await;
    assert_eq!(reason.cause(), CloseCause::Refused(ErrorKind::InvalidState));
    assert!(reason.to_string().contains("this incarnation is over"));
}

#[tokio::test]
async fn what_a_dropped_stream_had_queued_makes_room_again() {
    let (here, there) = tokio::io::duplex(512);
    let connecting = tokio::spawn(Client::connect(here, ClientOptions::default()));
    let mut peer = common::RawPeer::new(there);
    peer.expect(FrameKind::Hello).await;
    peer.hello().await;
    let client = connecting.await.unwrap().unwrap();
    let opening = client.clone();
    let session = tokio::spawn(async move { opening.open::<PortEvent>("silent", &Value::Null).await });
    peer.expect(FrameKind::Open).await;
    peer.send(Frame::new(FrameKind::Accept, 1, "{}")).await;
    let session = session.await.unwrap().unwrap();
    // The first is with the writer, which cannot go on; the second waits behind it.
    session.write(vec![0; 1000]).await.unwrap();
    tokio::task::yield_now().await;
    session.write(vec![0; 60_000]).await.unwrap();
    assert!(client.stats().queued_data_bytes > 60_000);
    drop(session);
    while client.stats().queued_data_bytes > 2000 {
        tokio::task::yield_now().await;
    }
    peer.expect(FrameKind::Cancel).await;
    while client.stats().queued_data_bytes > 0 {
        tokio::task::yield_now().await;
    }
}
