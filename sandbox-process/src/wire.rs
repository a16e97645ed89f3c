//! Messages on the control socket. Both ends are the same binary, so native byte order and no version.

/// Bytes of every message.
pub(crate) const MESSAGE_BYTES: usize = 32;

/// The step of starting a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Checking the command, before anything was started.
    Prepare,
    /// Making pipes and the supervisor, or the supervisor making the command's process.
    Fork,
    /// Putting the standard streams and the extra descriptors in place.
    Descriptors,
    /// Setting a resource limit.
    Limit,
    /// Entering the working directory.
    Directory,
    /// Switching to the user.
    User,
    /// Executing the program.
    Exec,
    /// Executing a program that exists, but whose interpreter or loader does not.
    Interpreter,
}

const STAGES: [Stage; 8] = [
    Stage::Prepare,
    Stage::Fork,
    Stage::Descriptors,
    Stage::Limit,
    Stage::Directory,
    Stage::User,
    Stage::Exec,
    Stage::Interpreter,
];

impl Stage {
    pub(crate) fn from_code(code: i32) -> Stage {
        usize::try_from(code).ok().and_then(|index| STAGES.get(index).copied()).unwrap_or(Stage::Fork)
    }
}

/// What the supervisor tells the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command runs as this process.
    Started { pid: i32 },
    /// The command could not be started; nothing is left.
    Failed { stage: Stage, errno: i32 },
    /// The command's own process was reaped.
    Exited { status: i32, cpu_us: u64, peak_kib: u64 },
    /// No descendant is left; the supervisor ends.
    Empty,
}

impl Report {
    pub(crate) fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (kind, a, b, c, d): (i32, i32, i32, u64, u64) = match self {
            Report::Started { pid } => (1, pid, 0, 0, 0),
            Report::Failed { stage, errno } => (2, stage as i32, errno, 0, 0),
            Report::Exited { status, cpu_us, peak_kib } => (3, status, 0, cpu_us, peak_kib),
            Report::Empty => (4, 0, 0, 0, 0),
        };
        let mut out = [0u8; MESSAGE_BYTES];
        out[0..4].copy_from_slice(&kind.to_ne_bytes());
        out[4..8].copy_from_slice(&a.to_ne_bytes());
        out[8..12].copy_from_slice(&b.to_ne_bytes());
        out[16..24].copy_from_slice(&c.to_ne_bytes());
        out[24..32].copy_from_slice(&d.to_ne_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Report> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let int = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
        let long = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_ne_bytes);
        Some(match int(0)? {
            1 => Report::Started { pid: int(4)? },
            2 => Report::Failed { stage: Stage::from_code(int(4)?), errno: int(8)? },
            3 => Report::Exited { status: int(4)?, cpu_us: long(16)?, peak_kib: long(24)? },
            4 => Report::Empty,
            _ => return None,
        })
    }
}

/// The only request of the host: a signal number. Everything else is said by shutting the socket down.
pub(crate) fn encode_signal(signal: i32) -> [u8; 4] {
    signal.to_ne_bytes()
}

pub(crate) fn decode_signal(bytes: &[u8]) -> Option<i32> {
    bytes.try_into().ok().map(i32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::{Report, STAGES, Stage, decode_signal, encode_signal};

    #[test]
    fn every_report_survives_the_wire() {
        let mut reports = vec![
            Report::Started { pid: 4_194_303 },
            Report::Exited { status: 0x7f00, cpu_us: u64::MAX, peak_kib: 1 << 40 },
            Report::Empty,
        ];
        reports.extend(STAGES.map(|stage| Report::Failed { stage, errno: 13 }));
        for report in reports {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        assert_eq!(decode_signal(&encode_signal(15)), Some(15));
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(Report::decode(&[]), None);
        assert_eq!(Report::decode(&[9; 32]), None);
        assert_eq!(decode_signal(&[1, 2]), None);
        assert_eq!(Stage::from_code(-1), Stage::Fork);
    }
}
