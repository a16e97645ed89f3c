//! Calls, bodies and sessions between a client and a server.

mod common;

use std::sync::Arc;

use common::{Rig, rig, rig_over, server_options};
use sandbox_core::{ControlRequest, ErrorKind, PortEvent, PortStream, SandboxError};
use sandbox_protocol::{Body, CloseCause, FLAG_END, Frame, FrameKind};
use serde_json::{Value, json};

const BUFFERS: [usize; 3] = [13, 1000, 1 << 20];

async fn over_everything(test: impl AsyncFn(Rig)) {
    for buffer in BUFFERS {
        test(rig(buffer).await).await;
    }
    let (here, there) = tokio::net::UnixStream::pair().unwrap();
    test(rig_over(here, there, server_options()).await).await;
}

async fn read_all(session: &mut PortStream) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(event) = session.next().await.unwrap() {
        if let PortEvent::Data(bytes) = event {
            whole.extend_from_slice(&bytes);
        }
    }
    whole
}

#[tokio::test]
async fn a_call_gets_its_reply_whatever_its_size() {
    over_everything(async |rig| {
        for size in [0, 10, 65_000, 300_000] {
            let request = json!({"text": "x".repeat(size)});
            let reply: Value = rig.client.call("ping", &request).await.unwrap();
            assert!(reply == request, "{size}");
        }
    })
    .await;
    let rig = rig(1 << 20).await;
    let request = json!({"text": "x".repeat(3_000_000)});
    assert!(rig.client.call::<Value>("ping", &request).await.unwrap() == request);
    let error = rig.client.call::<Value>("ping", &"x".repeat(17 << 20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
}

#[tokio::test]
async fn a_session_carries_bytes_both_ways_and_ends_once() {
    over_everything(async |rig| {
        let (reply, mut session): (Value, PortStream) = rig.client.open_with_reply("echo", &Value::Null).await.unwrap();
        assert_eq!(reply, json!({"hello": 1}));
        let data: Vec<u8> = (0..=255).cycle().take(200_000).collect();
        let control = session.control();
        let sent = data.clone();
        let writing = tokio::spawn(async move {
            control.write(sent.into()).await.unwrap();
            control.control(ControlRequest::CloseInput).await.unwrap();
            control.write("late".into()).await.unwrap_err()
        });
        assert!(read_all(&mut session).await == data);
        assert!(session.next().await.unwrap().is_none());
        assert_eq!(writing.await.unwrap().kind(), ErrorKind::InvalidState);
        rig.seen.until(|seen| seen.alive() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn bodies_are_whole_in_both_directions() {
    over_everything(async |rig| {
        let (sender, body) = Body::channel();
        tokio::spawn(async move {
            for _ in 0..100 {
                sender.send(vec![2; 3000]).await;
            }
            sender.finish().await;
        });
        let reply: Value = rig.client.call_with_body("upload", &Value::Null, body).await.unwrap();
        assert_eq!(reply, json!({"bytes": 300_000, "sum": 600_000}));
        let (reply, body) = rig.client.call_for_body::<Value>("download", &json!({"bytes": 300_000})).await.unwrap();
        assert_eq!(reply, json!({"bytes": 300_000}));
        assert_eq!(body.collect(1 << 20).await.unwrap().len(), 300_000);
        let (_, body) = rig.client.call_for_body::<Value>("download", &json!({"bytes": 0})).await.unwrap();
        assert!(body.collect(0).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_body_that_breaks_off_is_never_taken_for_the_whole() {
    let rig = rig(1 << 16).await;
    let (sender, body) = Body::channel();
    tokio::spawn(async move {
        sender.send("half").await;
        sender.fail(SandboxError::not_found("the local file is gone")).await;
    });
    let error = rig.client.call_with_body::<Value>("upload", &Value::Null, body).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    rig.seen.until(|seen| seen.alive() == 0).await;

    let (sender, body) = Body::channel();
    sender.send("half").await;
    drop(sender);
    let error = rig.client.call_with_body::<Value>("upload", &Value::Null, body).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);

    let (_, mut body) = rig.client.call_for_body::<Value>("broken", &Value::Null).await.unwrap();
    assert_eq!(body.next().await.unwrap().unwrap(), "start");
    assert_eq!(body.next().await.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn an_upload_that_is_refused_ends_without_its_bytes() {
    let rig = rig(1000).await;
    let body = Body::from_reader(tokio::io::repeat(1));
    let error = rig.client.call_with_body::<Value>("unread", &Value::Null, body).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert_eq!(rig.client.call::<Value>("ping", &1).await.unwrap(), json!(1));
}

#[tokio::test]
async fn refusals_reach_the_caller_as_they_are() {
    let rig = rig(100).await;
    let error = rig.client.call::<Value>("refuse", &Value::Null).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.field(), error.help()),
        (ErrorKind::InvalidInput, Some("path"), Some("take another"))
    );
    let error = rig.client.open::<PortEvent>("refuse", &Value::Null).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn what_the_peer_lacks_fails_before_anything_is_sent() {
    let rig = rig(100).await;
    let error = rig.client.call::<Value>("new.method", &Value::Null).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(rig.client.peer().has("ping") && rig.client.peer().require("fd_passing").is_err());
    assert_eq!(rig.seen.started.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_panic_of_a_handler_ends_its_stream_only() {
    let rig = rig(100).await;
    let error = rig.client.call::<Value>("panic", &Value::Null).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(rig.client.call::<Value>("ping", &1).await.unwrap(), json!(1));
}

#[tokio::test]
async fn dropping_a_session_cancels_it_at_the_server() {
    over_everything(async |rig| {
        let session = rig.client.open::<PortEvent>("silent", &Value::Null).await.unwrap();
        let control = session.control();
        assert_eq!(rig.seen.alive(), 1);
        drop(session);
        rig.seen.until(|seen| seen.alive() == 0).await;
        let error = control.control(ControlRequest::Kill).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        // A call that is dropped before its answer, too.
        let client = rig.client.clone();
        let call = tokio::spawn(async move { client.call::<Value>("hang", &Value::Null).await });
        rig.seen.until(|seen| seen.alive() == 1).await;
        call.abort();
        rig.seen.until(|seen| seen.alive() == 0).await;
        assert!(rig.seen.controls.lock().unwrap().is_empty(), "a cancel is no detach");
    })
    .await;
}

#[tokio::test]
async fn control_is_answered_in_order_and_with_its_errors() {
    let rig = rig(100).await;
    let session = rig.client.open::<PortEvent>("controls", &Value::Null).await.unwrap();
    session.signal(2).await.unwrap();
    assert_eq!(session.signal(-1).await.unwrap_err().field(), Some("signal"));
    let control = session.control();
    let resizes = (1..=20).map(|rows| ControlRequest::Resize { rows, cols: 80 }).collect::<Vec<_>>();
    for resize in &resizes {
        control.control(resize.clone()).await.unwrap();
    }
    assert_eq!(rig.seen.controls.lock().unwrap()[2..], resizes[..]);
}

#[tokio::test]
async fn more_control_than_may_wait_waits_at_the_client() {
    let rig = rig(1 << 16).await;
    let session = rig.client.open::<PortEvent>("controls", &Value::Null).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..100 {
        let control = session.control();
        // Never answered.
        waiting.push(tokio::spawn(async move { control.control(ControlRequest::Signal(64)).await }));
    }
    rig.seen.until(|seen| seen.controls.lock().unwrap().len() == 32).await;
    assert_eq!(rig.client.call::<Value>("ping", &1).await.unwrap(), json!(1));
    assert_eq!(rig.seen.controls.lock().unwrap().len(), 32);
    drop(session);
    for call in waiting {
        assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::InvalidState);
    }
}

#[tokio::test]
async fn input_that_is_refused_is_told_to_the_next_write() {
    let rig = rig(1 << 16).await;
    let session = rig.client.open::<PortEvent>("no_input", &Value::Null).await.unwrap();
    let error = loop {
        if let Err(error) = session.write("x").await {
            break error;
        }
        let _: Value = rig.client.call("ping", &1).await.unwrap();
    };
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidState, "the input is closed"));
    session.signal(1).await.unwrap();
}

#[tokio::test]
async fn a_kill_is_answered_before_the_end_that_it_causes() {
    let rig = rig(100).await;
    for _ in 0..50 {
        let mut session = rig.client.open::<PortEvent>("echo", &Value::Null).await.unwrap();
        session.kill().await.unwrap();
        assert_eq!(session.next().await.unwrap(), Some(PortEvent::End));
    }
}

#[tokio::test]
async fn the_connection_ends_with_its_last_handle() {
    let Rig { client, seen, server } = rig(100).await;
    let session = client.open::<PortEvent>("silent", &Value::Null).await.unwrap();
    let other = client.clone();
    drop(client);
    drop(other);
    session.signal(1).await.unwrap();
    drop(session);
    assert_eq!(server.await.unwrap().cause(), CloseCause::Peer);
    assert_eq!(seen.alive(), 0);
    assert!(!seen.controls.lock().unwrap().contains(&ControlRequest::Detach));
}

#[tokio::test]
async fn sessions_of_a_lost_connection_detach_at_the_server_and_are_lost_at_the_client() {
    let (here, there) = tokio::io::duplex(1000);
    let (mut middle_here, mut far) = tokio::io::duplex(1000);
    let rig = {
        let relay = tokio::spawn(async move {
            let mut there = there;
            let _ = tokio::io::copy_bidirectional(&mut there, &mut middle_here).await;
        });
        let seen = Arc::new(common::Seen::default());
        let service = Arc::new(common::TestService(seen.clone()));
        let (near, server_io) = tokio::io::duplex(1000);
        let server = tokio::spawn(sandbox_protocol::serve(server_io, server_options(), service));
        let cut = tokio::spawn(async move {
            let mut near = near;
            let _ = tokio::io::copy_bidirectional(&mut far, &mut near).await;
        });
        let client = sandbox_protocol::Client::connect(here, Default::default()).await.unwrap();
        (Rig { client, seen, server }, relay, cut)
    };
    let (Rig { client, seen, server }, relay, cut) = rig;
    let mut session = client.open::<PortEvent>("silent", &Value::Null).await.unwrap();
    let asking = {
        let client = client.clone();
        tokio::spawn(async move { client.call::<Value>("hang", &Value::Null).await })
    };
    seen.until(|seen| seen.alive() == 2).await;
    relay.abort();
    cut.abort();
    let error = session.next().await.unwrap_err();
    assert_eq!((error.kind(), error.admitted()), (ErrorKind::Lost, Some(sandbox_core::Admitted::Yes)));
    let error = asking.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.admitted()), (ErrorKind::Lost, Some(sandbox_core::Admitted::Unknown)));
    assert_eq!(client.closed().await.cause(), CloseCause::Transport);
    assert_eq!(client.call::<Value>("ping", &1).await.unwrap_err().kind(), ErrorKind::Unavailable);
    server.await.unwrap();
    assert_eq!(*seen.controls.lock().unwrap(), [ControlRequest::Detach]);
    assert_eq!(seen.alive(), 0);
}

/// A command that was begun and not yet accepted is the client's to come back to, as any other.
#[tokio::test]
async fn a_session_whose_acceptance_is_still_on_its_way_detaches_too() {
    let (mut peer, seen, server) = common::raw_client(server_options()).await;
    // Answers that nobody reads fill the way back, and what waits before it.
    let request = json!({"method": "ping", "request": "x".repeat(60_000)});
    let payload = serde_json::to_vec(&request).unwrap();
    for id in 1..=48 {
        peer.send(Frame::new(FrameKind::Open, id, payload.clone()).with_flags(FLAG_END)).await;
    }
    peer.send(common::open_frame(49, "silent")).await;
    seen.until(|seen| seen.alive() == 1).await;
    drop(peer);
    seen.until(|seen| seen.alive() == 0).await;
    assert_eq!(*seen.controls.lock().unwrap(), [ControlRequest::Detach]);
    server.await.unwrap();
}
