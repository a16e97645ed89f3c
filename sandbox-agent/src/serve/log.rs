//! The output of one job: what was written first and what was written last, at their offsets.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Most bytes in one piece: the largest event that an agent sends.
const PIECE_BYTES: usize = 64 * 1024;
/// Small writes are put together up to this size, so that a byte at a time costs little more than a byte.
const JOINED_BYTES: usize = 16 * 1024;

/// Which of a job's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout = 0,
    Stderr = 1,
}

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

/// How many bytes of a job's output are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keep {
    /// Of what was written first.
    pub(super) head: usize,
    /// Of what was written last.
    pub(super) tail: usize,
}

/// The first and last bytes of both streams in the order in which they came. Offsets count from the first byte ever
/// written: those of the log over both streams, those of a stream over that one.
#[derive(Debug)]
pub(super) struct Log {
    keep: Keep,
    head: Part,
    tail: Part,
    end: Place,
}

/// An offset in the log and the one in each stream there.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    at: u64,
    streams: [u64; 2],
}

impl Place {
    fn advance(&mut self, stream: Stream, bytes: usize) {
        self.at += bytes as u64;
        self.streams[stream as usize] += bytes as u64;
    }
}

/// Bytes that follow each other.
#[derive(Debug, Default)]
struct Part {
    segments: VecDeque<Segment>,
    first: Place,
    end: Place,
}

#[derive(Debug)]
struct Segment {
    stream: Stream,
    /// Offset in the log.
    at: u64,
    /// Offset in the stream.
    offset: u64,
    bytes: BytesMut,
}

impl Part {
    fn new(first: Place) -> Self {
        Self { segments: VecDeque::new(), first, end: first }
    }

    fn kept(&self) -> usize {
        (self.end.at - self.first.at) as usize
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        match self.segments.back_mut() {
            Some(last) if last.stream == stream && last.bytes.len() + bytes.len() <= JOINED_BYTES => {
                last.bytes.extend_from_slice(bytes);
            }
            _ => {
                let (at, offset) = (self.end.at, self.end.streams[stream as usize]);
                self.segments.push_back(Segment { stream, at, offset, bytes: BytesMut::from(bytes) });
            }
        }
        self.end.advance(stream, bytes.len());
    }

    /// Forgets everything but the last bytes.
    fn keep_last(&mut self, limit: usize) {
        while let Some(excess) = self.kept().checked_sub(limit).filter(|excess| *excess > 0) {
            let Some(front) = self.segments.front_mut() else { break };
            let cut = excess.min(front.bytes.len());
            self.first.advance(front.stream, cut);
            if cut < front.bytes.len() {
                drop(front.bytes.split_to(cut));
                front.at += cut as u64;
                front.offset += cut as u64;
            } else {
                self.segments.pop_front();
            }
        }
        if self.segments.is_empty() {
            self.segments = VecDeque::new();
        }
    }

    /// The next bytes that the reader does not know. `None`: it has read this part.
    fn next(&self, cursor: &mut Cursor) -> Option<Piece> {
        let mut index = self.segments.partition_point(|segment| segment.at + segment.bytes.len() as u64 <= cursor.at);
        loop {
            let segment = self.segments.get(index)?;
            let known = cursor.known[segment.stream as usize].saturating_sub(segment.offset);
            let from = known.max(cursor.at.saturating_sub(segment.at)) as usize;
            if let Some(rest) = segment.bytes.get(from..).filter(|rest| !rest.is_empty()) {
                let piece = &rest[..rest.len().min(PIECE_BYTES)];
                cursor.at = segment.at + (from + piece.len()) as u64;
                cursor.known[segment.stream as usize] = segment.offset + (from + piece.len()) as u64;
                return Some(Piece::Bytes(segment.stream, Bytes::copy_from_slice(piece)));
            }
            cursor.at = segment.at + segment.bytes.len() as u64;
            index += 1;
        }
    }

    /// Offset in the log of the first byte that is not known.
    fn first_unknown(&self, known: [u64; 2]) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let known = known[segment.stream as usize].saturating_sub(segment.offset);
            (known < segment.bytes.len() as u64).then_some(segment.at + known)
        })
    }
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// Offset in the log.
    pub(super) at: u64,
    /// Bytes of each stream that the reader knows already.
    pub(super) known: [u64; 2],
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Bytes(Stream, Bytes),
    /// So many bytes are no longer kept: of both streams together, and of each.
    Gap(u64, [u64; 2]),
}

impl Log {
    pub(super) fn new(keep: Keep) -> Self {
        Self { keep, head: Part::default(), tail: Part::default(), end: Place::default() }
    }

    /// Offset behind the last byte.
    pub(super) fn end(&self) -> u64 {
        self.end.at
    }

    /// Bytes of a stream so far.
    pub(super) fn stream_end(&self, stream: Stream) -> u64 {
        self.end.streams[stream as usize]
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self) -> usize {
        self.head.kept() + self.tail.kept()
    }

    pub(super) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let is_filling = self.end.at < self.keep.head as u64;
        let room = if is_filling { self.keep.head - self.end.at as usize } else { 0 };
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        if !first.is_empty() {
            self.head.push(stream, first);
            self.tail = Part::new(self.head.end);
        }
        if !rest.is_empty() {
            self.tail.push(stream, rest);
            self.tail.keep_last(self.keep.tail);
        }
        self.end.advance(stream, bytes.len());
    }

    /// Forgets everything but the last bytes; what was written first as a whole, when it alone is too much.
    pub(super) fn keep_last(&mut self, limit: usize) {
        if self.head.kept() > limit {
            self.head = Part::default();
            // What comes is not the first any more.
            self.keep.head = 0;
        }
        self.tail.keep_last(limit - self.head.kept());
    }

    /// The next piece, and moves the reader behind it. `None`: everything was read.
    pub(super) fn next(&self, cursor: &mut Cursor) -> Option<Piece> {
        if cursor.at < self.head.end.at
            && let Some(piece) = self.head.next(cursor)
        {
            return Some(piece);
        }
        if cursor.at < self.tail.first.at {
            let gap = self.tail.first.at - cursor.at.max(self.head.end.at);
            let lost = STREAMS.map(|stream| {
                let stream = stream as usize;
                let from = cursor.known[stream].max(self.head.end.streams[stream]);
                cursor.known[stream] = cursor.known[stream].max(self.tail.first.streams[stream]);
                self.tail.first.streams[stream].saturating_sub(from)
            });
            cursor.at = self.tail.first.at;
            if gap > 0 && lost != [0, 0] {
                return Some(Piece::Gap(gap, lost));
            }
        }
        self.tail.next(cursor)
    }

    /// A reader who starts behind the bytes that it knows, and the offsets where its streams go on. Gaps are told on
    /// the way.
    pub(super) fn read_from(&self, known: [u64; 2]) -> (Cursor, [u64; 2]) {
        let starts = STREAMS.map(|stream| {
            let (asked, stream) = (known[stream as usize], stream as usize);
            match asked < self.head.end.streams[stream] {
                true => asked,
                false => asked.max(self.tail.first.streams[stream]).min(self.end.streams[stream]),
            }
        });
        // At the first byte that is not known, so that what is forgotten before it is no gap.
        let unknown = self.head.first_unknown(starts).or_else(|| self.tail.first_unknown(starts));
        (Cursor { at: unknown.unwrap_or(self.end.at), known: starts }, starts)
    }

    /// As [`Log::read_from`], but there is no gap on the way: what is before the last one is left out.
    pub(super) fn resume(&self, known: [u64; 2]) -> (Cursor, [u64; 2]) {
        if self.tail.first.at == self.head.end.at {
            return self.read_from(known);
        }
        self.read_from(STREAMS.map(|stream| known[stream as usize].max(self.tail.first.streams[stream as usize])))
    }
}

#[cfg(test)]
mod tests {
    use super::{Cursor, Keep, Log, PIECE_BYTES, Piece, Stream};

    fn read(log: &Log, cursor: &mut Cursor) -> (Vec<u8>, Vec<u8>, u64) {
        let (mut stdout, mut stderr, mut gap) = (Vec::new(), Vec::new(), 0);
        while let Some(piece) = log.next(cursor) {
            match piece {
                Piece::Bytes(Stream::Stdout, bytes) => stdout.extend_from_slice(&bytes),
                Piece::Bytes(Stream::Stderr, bytes) => stderr.extend_from_slice(&bytes),
                Piece::Gap(bytes, lost) => {
                    assert_eq!(bytes, lost[0] + lost[1]);
                    gap += bytes;
                }
            }
        }
        (stdout, stderr, gap)
    }

    #[test]
    fn every_offset_of_both_streams_resumes_to_the_byte() {
        let mut log = Log::new(Keep { head: 0, tail: 1 << 20 });
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        for index in 0..200u32 {
            let bytes = vec![index as u8; 1 + (index as usize * 37) % 400];
            let (stream, copy) =
                if index % 3 == 0 { (Stream::Stderr, &mut stderr) } else { (Stream::Stdout, &mut stdout) };
            log.push(stream, &bytes);
            copy.extend_from_slice(&bytes);
        }
        for known in [[0, 0], [1, 0], [777, 4_000], [stdout.len() as u64, 3], [u64::MAX, u64::MAX]] {
            let (mut cursor, starts) = log.resume(known);
            let (out, err, gap) = read(&log, &mut cursor);
            assert_eq!(gap, 0);
            assert_eq!(out, stdout[starts[0] as usize..]);
            assert_eq!(err, stderr[starts[1] as usize..]);
        }
    }

    #[test]
    fn what_no_longer_fits_is_a_gap_of_its_exact_size() {
        let mut log = Log::new(Keep { head: 0, tail: 1000 });
        for index in 0..100u8 {
            log.push(Stream::Stdout, &[index; 33]);
        }
        assert_eq!(log.kept(), 1000);
        assert_eq!(log.resume([0, 0]).1, [2300, 0]);
        let mut cursor = Cursor { at: 5, known: [5, 0] };
        let (out, _, gap) = read(&log, &mut cursor);
        assert_eq!((out.len(), gap), (1000, 2295));
        assert_eq!(cursor.at, log.end());
        log.keep_last(0);
        assert_eq!((log.kept(), log.resume([0, 0]).1), (0, [3300, 0]));
        log.push(Stream::Stderr, b"x");
        assert_eq!(read(&log, &mut cursor), (Vec::new(), b"x".to_vec(), 0));
    }

    #[test]
    fn forgetting_what_a_reader_knows_is_no_gap() {
        let mut log = Log::new(Keep { head: 0, tail: 1000 });
        log.push(Stream::Stdout, &[1; 900]);
        let (mut cursor, _) = log.resume([500, 0]);
        log.push(Stream::Stderr, &[2; 500]);
        let (out, err, gap) = read(&log, &mut cursor);
        assert_eq!((out.len(), err.len(), gap), (400, 500, 0));
    }

    #[test]
    fn a_piece_is_never_larger_than_an_event_may_be() {
        let mut log = Log::new(Keep { head: 0, tail: 1 << 20 });
        log.push(Stream::Stdout, &vec![7; 3 * PIECE_BYTES + 5]);
        let mut cursor = Cursor::default();
        let mut sizes = Vec::new();
        while let Some(Piece::Bytes(_, bytes)) = log.next(&mut cursor) {
            sizes.push(bytes.len());
        }
        assert_eq!(sizes, [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 5]);
    }

    #[test]
    fn the_head_and_the_tail_are_kept_and_the_gap_between_is_told_for_each_stream() {
        let mut log = Log::new(Keep { head: 100, tail: 200 });
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        for index in 0..100u8 {
            let (stream, copy) = match index % 4 {
                0 => (Stream::Stderr, &mut stderr),
                _ => (Stream::Stdout, &mut stdout),
            };
            log.push(stream, &[index; 17]);
            copy.extend_from_slice(&[index; 17]);
            assert!(log.kept() <= 300);
        }
        // Every start gets what is kept from there on, and is told exactly what is missing of each stream.
        for known in [[0, 0], [10, 3], [60, 17], [500, 400], [1274, 0], [0, 425], [1275, 425], [9999, 9999]] {
            let (mut cursor, starts) = log.read_from(known);
            let mut at = starts;
            while let Some(piece) = log.next(&mut cursor) {
                match piece {
                    Piece::Bytes(stream, bytes) => {
                        let whole = if stream == Stream::Stdout { &stdout } else { &stderr };
                        let from = at[stream as usize] as usize;
                        assert_eq!(bytes, whole[from..from + bytes.len()], "{known:?}");
                        at[stream as usize] += bytes.len() as u64;
                    }
                    Piece::Gap(_, lost) => [0, 1].into_iter().for_each(|stream| at[stream] += lost[stream]),
                }
            }
            assert_eq!(at, [stdout.len() as u64, stderr.len() as u64], "{known:?}");
        }
        let (mut cursor, starts) = log.read_from([0, 0]);
        assert_eq!(starts, [0, 0]);
        assert!(matches!(log.next(&mut cursor), Some(Piece::Bytes(Stream::Stderr, _))), "the head is there");
        // A reader that takes no gap starts behind it.
        let (mut cursor, starts) = log.resume([0, 0]);
        assert!(starts[0] > 0 && starts[1] > 0);
        let mut read = 0;
        while let Some(piece) = log.next(&mut cursor) {
            match piece {
                Piece::Bytes(_, bytes) => read += bytes.len(),
                Piece::Gap(..) => panic!("a gap"),
            }
        }
        assert_eq!(read, 200);
        log.keep_last(50);
        assert_eq!(log.kept(), 50);
        assert!(log.read_from([0, 0]).1[0] > 1000);
    }
}
