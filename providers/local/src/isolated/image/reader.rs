//! The bytes of a tar file, however they are compressed, within bounds.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufReader, Read, Seek},
    rc::Rc,
};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// Headers of one entry, long names and extensions included: the tar library holds them in memory.
pub(crate) const HEADERS_MAX: u64 = 1 << 20;

/// What ends an archive: two empty blocks.
const END_BYTES: u64 = 1024;

/// How much may still be read.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// Of the whole archive.
    left: Cell<u64>,
    /// Of the headers that are being read; the contents of files have no bound of their own.
    headers_left: Cell<u64>,
    is_over: Cell<bool>,
    has_long_headers: Cell<bool>,
}

impl Bounds {
    pub(crate) fn new(bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            left: Cell::new(bytes),
            headers_left: Cell::new(u64::MAX),
            is_over: Cell::new(false),
            has_long_headers: Cell::new(false),
        })
    }

    pub(crate) fn begin_headers(&self) {
        self.headers_left.set(HEADERS_MAX);
    }

    pub(crate) fn begin_contents(&self) {
        self.headers_left.set(u64::MAX);
    }

    /// Whether it is longer than it may be.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    pub(crate) fn has_long_headers(&self) -> bool {
        self.has_long_headers.get()
    }

    fn count(&self, bytes: u64) -> io::Result<()> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => self.left.set(left),
            None => {
                self.is_over.set(true);
                return Err(io::Error::other("the archive is longer than it may be"));
            }
        }
        if self.headers_left.get() != u64::MAX {
            match self.headers_left.get().checked_sub(bytes) {
                Some(left) => self.headers_left.set(left),
                None => {
                    self.has_long_headers.set(true);
                    return Err(io::Error::other("the headers of an entry are too long"));
                }
            }
        }
        Ok(())
    }
}

enum Source {
    Plain(BufReader<File>),
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
    Zstd(Box<Frames>),
}

/// An archive that is being read.
pub(crate) struct Reader {
    source: Source,
    bounds: Rc<Bounds>,
    /// How many of the last bytes were zero.
    zeros: u64,
}

impl Reader {
    /// Finds out how the file is compressed.
    ///
    /// # Errors
    /// `Unsupported` for a compression that is not understood; else as of reading.
    pub(crate) fn new(mut file: File, bounds: Rc<Bounds>) -> io::Result<Self> {
        let mut magic = Vec::new();
        (&file).take(6).read_to_end(&mut magic)?;
        file.rewind()?;
        let source = match magic.as_slice() {
            [0x1f, 0x8b, ..] => Source::Gzip(Box::new(MultiGzDecoder::new(BufReader::new(file)))),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Source::Zstd(Box::new(Frames { source: Some(BufReader::new(file)), frame: None }))
            }
            [0xfd, b'7', b'z', b'X', b'Z', 0] | [b'B', b'Z', b'h', ..] => return Err(io::ErrorKind::Unsupported.into()),
            _ => Source::Plain(BufReader::new(file)),
        };
        Ok(Self { source, bounds, zeros: 0 })
    }

    /// Reads what is left, so that a checksum at the end is checked. False for an archive without its end.
    pub(crate) fn finish(mut self) -> io::Result<bool> {
        self.bounds.begin_contents();
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.zeros >= END_BYTES)
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.source {
            Source::Plain(file) => file.read(buffer),
            Source::Gzip(file) => file.read(buffer),
            Source::Zstd(file) => file.read(buffer),
        }?;
        self.bounds.count(count as u64)?;
        let read = &buffer[..count];
        match read.iter().rposition(|byte| *byte != 0) {
            Some(at) => self.zeros = (count - at - 1) as u64,
            None => self.zeros = self.zeros.saturating_add(count as u64),
        }
        Ok(count)
    }
}

/// Frames of zstd, one after the other.
struct Frames {
    /// None while a frame has it.
    source: Option<BufReader<File>>,
    frame: Option<StreamingDecoder<BufReader<File>, ruzstd::decoding::FrameDecoder>>,
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(frame) = &mut self.frame {
                let count = frame.read(buffer)?;
                if count > 0 {
                    return Ok(count);
                }
            }
            if let Some(frame) = self.frame.take() {
                self.source = Some(frame.into_inner());
            }
            let Some(mut source) = self.source.take() else { return Ok(0) };
            skip_skippable(&mut source)?;
            if io::BufRead::fill_buf(&mut source)?.is_empty() {
                return Ok(0);
            }
            let frame = StreamingDecoder::new(source).map_err(io::Error::other)?;
            self.frame = Some(frame);
        }
    }
}

/// Frames that hold no content: magic number and length, four bytes each, then so many bytes.
fn skip_skippable(source: &mut BufReader<File>) -> io::Result<()> {
    loop {
        let position = source.stream_position()?;
        let mut head = [0; 8];
        let is_skippable = match source.read_exact(&mut head) {
            Ok(()) => matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        if !is_skippable {
            source.seek(io::SeekFrom::Start(position))?;
            return Ok(());
        }
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        source.seek_relative(i64::from(length))?;
    }
}
