//! Files on their way out.

use std::io;

use hyper::{
    StatusCode,
    header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, RANGE},
};
use sandbox_core::{ByteString, FileStat, ReadRange};
use sandbox_protocol::{
    Body,
    methods::{self, FileRead},
};

use super::of_agent;
use crate::{
    execd::{Execd, path_of},
    http::{self, Answer, Pieces, Query, Refusal, Request},
};

const OCTETS: &str = "application/octet-stream";

/// A part of a file as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// From the first to the last of these, which is the end where it is none.
    From(u64, Option<u64>),
    /// The last bytes.
    Last(u64),
}

/// The first range of a header. What is none of bytes is as if it were not there.
fn part(header: &str) -> Option<Part> {
    let (from, to) = header.trim().strip_prefix("bytes=")?.split(',').next()?.trim().split_once('-')?;
    match (from.trim(), to.trim()) {
        ("", last) => Some(Part::Last(last.parse().ok()?)),
        (from, "") => Some(Part::From(from.parse().ok()?, None)),
        (from, to) => {
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            (from <= to).then_some(Part::From(from, Some(to)))
        }
    }
}

impl Part {
    /// First byte and number of bytes in a file of this size; none: there is nothing of it.
    fn within(self, size: u64) -> Option<(u64, u64)> {
        match self {
            Self::From(from, to) if from < size => {
                let end = to.map_or(size, |to| to.saturating_add(1).min(size));
                Some((from, end - from))
            }
            Self::Last(count) if count > 0 && size > 0 => {
                let count = count.min(size);
                Some((size - count, count))
            }
            _ => None,
        }
    }
}

async fn read(execd: &Execd, path: ByteString, range: ReadRange) -> Result<(u64, Body), Refusal> {
    let request = FileRead { path, range };
    let read = execd.client.call_for_body::<FileStat>(methods::FILE_READ, &request).await;
    let (stat, body) = read.map_err(|error| of_agent(&error))?;
    Ok((stat.size, body))
}

pub(super) async fn download(execd: &Execd, request: &Request, query: &Query) -> Answer {
    let path = path_of(query)?;
    let header = request.headers().get(RANGE).and_then(|range| range.to_str().ok());
    let lines = (query.number::<u64>("offset")?, query.number::<u64>("limit")?);
    if lines != (None, None) {
        if header.is_some() {
            return Err(Refusal::bad("offset and limit exclude Range"));
        }
        return download_lines(execd, path, lines).await;
    }
    let Some(part) = header.and_then(part) else {
        let (size, body) = read(execd, path, ReadRange::default()).await?;
        return Ok(answer(body, size, None));
    };
    // Its size first: the end of a part may count from the end of the file.
    let (size, _) = read(execd, path.clone(), ReadRange { offset: 0, length: Some(0) }).await?;
    let Some((offset, length)) = part.within(size) else {
        let mut refusal = http::text(StatusCode::RANGE_NOT_SATISFIABLE, "the range is not satisfiable");
        if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
            refusal.headers_mut().insert(CONTENT_RANGE, value);
        }
        return Ok(refusal);
    };
    let (_, body) = read(execd, path, ReadRange { offset, length: Some(length) }).await?;
    Ok(answer(body, length, Some(format!("bytes {offset}-{}/{size}", offset + length - 1))))
}

fn answer(body: Body, length: u64, range: Option<String>) -> http::Response {
    let (pieces, mut response) = http::streamed(OCTETS);
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(range) = range.and_then(|range| HeaderValue::from_str(&range).ok()) {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        response.headers_mut().insert(CONTENT_RANGE, range);
    }
    tokio::spawn(pass_on(body, length, pieces));
    response
}

/// Passes on so many bytes. A file that is shorter by now cuts the answer; what was added to it is not in it.
async fn pass_on(mut body: Body, length: u64, pieces: Pieces) {
    let mut left = length;
    while left > 0 {
        let piece = match body.next().await {
            Ok(Some(mut piece)) => {
                piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                left -= piece.len() as u64;
                Ok(piece)
            }
            Ok(None) => Err(io::Error::other("the file became shorter meanwhile")),
            Err(error) => Err(io::Error::other(error)),
        };
        let is_broken = piece.is_err();
        if pieces.send(piece).await.is_err() || is_broken {
            return;
        }
    }
}

/// So many lines from one on; the first is 1.
async fn download_lines(execd: &Execd, path: ByteString, (offset, limit): (Option<u64>, Option<u64>)) -> Answer {
    let first = offset.unwrap_or(1);
    if first == 0 || limit == Some(0) {
        return Err(Refusal::bad("offset and limit must be at least 1"));
    }
    let (_, mut body) = read(execd, path, ReadRange::default()).await?;
    let (pieces, response) = http::streamed("text/plain; charset=utf-8");
    tokio::spawn(async move {
        let (mut to_skip, mut to_send) = (first - 1, limit.unwrap_or(u64::MAX));
        while to_send > 0 {
            let mut piece = match body.next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return,
                Err(error) => {
                    let _ = pieces.send(Err(io::Error::other(error))).await;
                    return;
                }
            };
            while to_skip > 0 {
                match piece.iter().position(|byte| *byte == b'\n') {
                    Some(at) => {
                        drop(piece.split_to(at + 1));
                        to_skip -= 1;
                    }
                    None => {
                        piece.clear();
                        break;
                    }
                }
            }
            let mut end = 0;
            while to_send > 0 && end < piece.len() {
                match piece[end..].iter().position(|byte| *byte == b'\n') {
                    Some(at) => {
                        end += at + 1;
                        to_send -= 1;
                    }
                    None => end = piece.len(),
                }
            }
            piece.truncate(end);
            if !piece.is_empty() && pieces.send(Ok(piece)).await.is_err() {
                return;
            }
        }
    });
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::{Part, part};

    #[test]
    fn ranges_are_what_they_say_and_what_is_none_is_left() {
        for (header, expected) in [
            ("bytes=0-4", Some(Part::From(0, Some(4)))),
            ("bytes=5-", Some(Part::From(5, None))),
            ("bytes=-3", Some(Part::Last(3))),
            ("bytes=1-2,5-6", Some(Part::From(1, Some(2)))),
            ("bytes=4-2", None),
            ("lines=1-2", None),
            ("bytes=x-", None),
        ] {
            assert_eq!(part(header), expected, "{header}");
        }
        assert_eq!(Part::From(2, Some(9)).within(5), Some((2, 3)));
        assert_eq!(Part::From(5, None).within(5), None);
        assert_eq!(Part::Last(9).within(5), Some((0, 5)));
        assert_eq!(Part::Last(0).within(5), None);
        assert_eq!(Part::From(0, Some(u64::MAX)).within(5), Some((0, 5)));
    }
}
