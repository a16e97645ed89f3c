//! The bytes of strangers: whatever comes, reading ends, without a panic and within the limits.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::Index};
use sandbox_protocol::{CloseReason, FLAG_END, Frame, FrameKind, FrameReader, Violation, limits};

fn read_all(bytes: &[u8]) -> (Vec<Frame>, Result<(), CloseReason>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut reader = FrameReader::new(bytes, Duration::from_secs(1));
        let mut frames = Vec::new();
        loop {
            match reader.next().await {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, Ok(())),
                Err(reason) => return (frames, Err(reason)),
            }
        }
    })
}

fn good_frame() -> impl Strategy<Value = Frame> {
    (proptest::sample::select(FrameKind::ALL), any::<u32>(), any::<u8>(), any::<u16>(), vec(any::<u8>(), 0..60))
        .prop_map(|(kind, stream, channel, flags, payload)| {
            use FrameKind::{Goodbye, Hello, Ping, Pong};
            let stream = if matches!(kind, Hello | Goodbye | Ping | Pong) { 0 } else { stream.max(1) };
            Frame::new(kind, stream, payload).with_channel(channel).with_flags(flags)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        let (frames, _) = read_all(&bytes);
        prop_assert!(frames.iter().map(|frame| frame.payload.len() + limits::HEADER_BYTES).sum::<usize>() <= bytes.len());
    }

    #[test]
    fn good_frames_come_back(frames in vec(good_frame(), 0..10)) {
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        prop_assert_eq!(read_all(&bytes), (frames, Ok(())));
    }

    #[test]
    fn changed_frames_are_read_or_refused(
        frames in vec(good_frame(), 1..6),
        changes in vec((any::<Index>(), any::<u8>(), 0..4u8), 0..6),
    ) {
        let mut bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        for (place, byte, what) in changes {
            if bytes.is_empty() {
                break;
            }
            let place = place.index(bytes.len());
            match what {
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                2 => drop(bytes.remove(place)),
                _ => bytes.truncate(place),
            }
        }
        for frame in read_all(&bytes).0 {
            prop_assert!(frame.payload.len() <= frame.kind.max_bytes());
        }
    }

    #[test]
    fn frames_of_a_newer_peer_are_skipped(code in 100..=255u8, payload in vec(any::<u8>(), 0..300), good in good_frame()) {
        let mut newer = Frame::new(FrameKind::Cancel, 9, payload).encode();
        newer[8] = code;
        let bytes = [newer, good.encode()].concat();
        prop_assert_eq!(read_all(&bytes), (vec![good], Ok(())));
    }
}

#[test]
fn a_length_beyond_the_limit_is_refused_from_the_header_alone() {
    for kind in FrameKind::ALL {
        let stream = u32::from(Frame::new(*kind, 0, "").header()[8] > 4);
        let mut header = Frame::new(*kind, stream, "").header();
        header[..4].copy_from_slice(&(kind.max_bytes() as u32 + 1).to_le_bytes());
        let expected = Violation::TooLarge { kind: kind.code(), bytes: kind.max_bytes() + 1, limit: kind.max_bytes() };
        assert_eq!(read_all(&header).1, Err(expected.into()));
        header[..4].copy_from_slice(&(kind.max_bytes() as u32).to_le_bytes());
        assert_eq!(read_all(&header).1.is_err(), kind.max_bytes() > 0);
    }
    let mut header = Frame::new(FrameKind::Data, 1, "").header();
    header[8] = 200;
    header[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(read_all(&header).1.is_err());
}

#[test]
fn half_a_frame_is_not_the_end() {
    let bytes = Frame::new(FrameKind::Data, 1, vec![1; 1000]).with_flags(FLAG_END).encode();
    assert_eq!(read_all(&bytes).1, Ok(()));
    for cut in [1, 11, 12, 13, 500, bytes.len() - 1] {
        assert_eq!(read_all(&bytes[..cut]).1, Err(Violation::Truncated.into()), "{cut}");
    }
}
