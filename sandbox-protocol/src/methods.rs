//! The methods of the agent: names, and what travels with them.
//!
//! A name is also the feature under which a peer announces it. Names and fields are never changed or reused; what is
//! added later has a default. Requests are read leniently: a field that an agent must not overlook gets a feature name
//! of its own, which the client checks with [`PeerInfo::require`](crate::PeerInfo::require).

use std::collections::BTreeMap;

use sandbox_core::{
    AttachOptions, ByteString, DirEntry, ExecExit, ExecRequest, FileStat, ReadRange, SandboxPtySpec, Secret,
    WriteOptions,
};
use serde::{Deserialize, Serialize};

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $text;)*

        /// Every method.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

methods! {
    /// Runs a command: [`ExecStart`], then a session of [`ExecEvent`](sandbox_core::ExecEvent)s beside
    /// [`ExecStarted`]. An id that is known already is attached to, not run again.
    EXEC = "exec";
    /// Goes on with a command: [`ExecAttach`], then a session beside [`ExecAttached`].
    EXEC_ATTACH = "exec.attach";
    /// The commands that the agent knows: [`Nothing`] → [`ExecList`].
    EXEC_LIST = "exec.list";
    /// Waits for the end of a command: [`ExecWait`] → [`ExecWaited`].
    EXEC_WAIT = "exec.wait";
    /// Signals a command: [`ExecSignal`] → [`Nothing`].
    EXEC_SIGNAL = "exec.signal";
    /// Reads what is kept of a command's output, beside whoever has it: [`ExecLogs`], then a session of
    /// [`LogEvent`](crate::LogEvent)s beside [`ExecLogsAt`].
    EXEC_LOGS = "exec.logs";
    /// Opens a terminal: [`PtyCreate`], then a session of [`PtyEvent`](sandbox_core::PtyEvent)s.
    PTY_CREATE = "pty.create";
    /// Attaches to a terminal: [`PtyAttachRequest`], then a session.
    PTY_ATTACH = "pty.attach";
    /// The terminals: [`Nothing`] → [`PtyList`].
    PTY_LIST = "pty.list";
    /// Reads a file: [`FileRead`] → [`FileStat`] and the bytes.
    FILE_READ = "file.read";
    /// Writes a file: [`FileWrite`] and the bytes → [`BytesMoved`]. The old file stays until the last byte is there.
    FILE_WRITE = "file.write";
    /// What a path is: [`FilePath`] → [`FileStat`].
    FILE_STAT = "file.stat";
    /// The entries of a folder: [`FilePath`] → [`FileList`].
    FILE_LIST = "file.list";
    /// Removes: [`FileRemove`] → [`Nothing`].
    FILE_REMOVE = "file.remove";
    /// Makes a folder and its parents: [`MakeDir`] → [`Nothing`].
    FILE_MAKE_DIR = "file.make_dir";
    /// Unpacks a tar stream: [`TarIn`] and the bytes → [`BytesMoved`].
    FILE_TAR_IN = "file.tar_in";
    /// Packs a path: [`FilePath`] → [`Nothing`] and the bytes.
    FILE_TAR_OUT = "file.tar_out";
    /// Writes a file from a descriptor that was sent beside the request: [`FileWriteFd`] → [`BytesMoved`]. Announced
    /// only where descriptors can be sent; see [`FEATURE_FD_PASSING`](crate::FEATURE_FD_PASSING).
    FILE_WRITE_FD = "file.write_fd";
    /// Reads a file into a descriptor that was sent beside the request: [`FileReadFd`] → [`FileReadFdDone`]. Announced
    /// as [`FILE_WRITE_FD`].
    FILE_READ_FD = "file.read_fd";
    /// Writes a file with what an HTTP server answers, reached by a unix socket inside: [`FileHttpGet`] → [`BytesMoved`].
    /// The old file stays until the last byte is there, and nothing changes unless it is as long as it was said to be.
    FILE_HTTP_GET = "file.http_get";
    /// Sends a file to an HTTP server in the same way: [`FileHttpPut`] → [`FileHttpPutDone`].
    FILE_HTTP_PUT = "file.http_put";
    /// Connects to a TCP port inside: [`PortOpen`], then a session of [`PortEvent`](sandbox_core::PortEvent)s.
    PORT_OPEN = "port.open";
    /// Connects to a unix socket inside: [`FilePath`], then a session of [`PortEvent`](sandbox_core::PortEvent)s.
    UNIX_OPEN = "unix.open";
    /// Listens on a TCP port inside: [`PortListen`], then a session of [`ListenEvent`](crate::ListenEvent)s beside
    /// [`PortListening`]. Ends with its session.
    PORT_LISTEN = "port.listen";
    /// Listens on a unix socket inside: [`UnixListen`], then as [`PORT_LISTEN`].
    UNIX_LISTEN = "unix.listen";
    /// Takes a connection that a listener inside has got: [`PortAccept`], then a session of
    /// [`ForwardEvent`](crate::ForwardEvent)s, whose `close_input` ends what the inside reads.
    PORT_ACCEPT = "port.accept";
    /// Moves the expiry: [`TtlRenew`] → [`TtlRenewed`].
    TTL_RENEW = "ttl.renew";
    /// About the agent: [`Nothing`] → [`AgentInfo`].
    INFO = "info";
    /// The use right now: [`Nothing`] → [`SandboxMetrics`](sandbox_core::SandboxMetrics).
    METRICS = "metrics";
    /// Makes names resolve inside: [`HostsSet`] → [`Nothing`].
    HOSTS_SET = "hosts.set";
    /// Ends everything inside and the agent: [`Shutdown`] → [`Nothing`].
    SHUTDOWN = "shutdown";
}

/// The id under which the entrypoint of a sandbox is a command like any other: for [`EXEC_ATTACH`], [`EXEC_LOGS`],
/// [`EXEC_WAIT`] and [`EXEC_SIGNAL`].
pub const ENTRYPOINT_ID: &str = "entrypoint";

/// The feature of an agent that gives folders of [`FILE_MAKE_DIR`] the owner that is named.
pub const FEATURE_MAKE_DIR_OWNER: &str = "file.make_dir.owner";

/// A request or a reply that says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}

/// Of [`EXEC`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecStart {
    /// The command. `stdin = bytes` says that the input follows on the stream, to its end; like `stream`.
    pub request: ExecRequest,
    /// Runs on when its client goes, and keeps its output.
    #[serde(default)]
    pub detached: bool,
}

impl ExecStart {
    /// An attached command.
    pub fn new(request: ExecRequest) -> Self {
        Self { request, detached: false }
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        })*
    };
}

messages! {
    /// Beside the session of [`EXEC`].
    ExecStarted {
        /// The id: the caller's, or the agent's choice.
        exec_id: String,
        /// It was known already: this is an attachment to it, from the byte on since when everything is kept.
        was_known: bool,
        /// Offset of the first byte of standard output that comes.
        stdout_offset: u64,
        /// Offset of the first byte of standard error that comes.
        stderr_offset: u64,
        /// Bytes of input that were taken already. What is written on this stream counts from the first byte of all:
        /// so many bytes of it are skipped.
        stdin_offset: u64,
    }

    /// Of [`EXEC_ATTACH`].
    ExecAttach {
        /// Which.
        exec_id: String,
        /// Bytes of standard output that are known already.
        stdout_offset: u64,
        /// Bytes of standard error that are known already.
        stderr_offset: u64,
        /// Where in the whole input that begins what is written on this stream: what was taken already is skipped, and
        /// an offset behind it is refused, so that input is neither repeated nor lost. None: it goes on behind what was
        /// taken, wherever that is.
        stdin_offset: Option<u64>,
    }

    /// Beside the session of [`EXEC_ATTACH`]: where its output goes on. More than was asked for means that bytes in
    /// between are no longer kept.
    ExecAttached {
        /// Offset of the first byte of standard output that comes.
        stdout_offset: u64,
        /// Offset of the first byte of standard error that comes.
        stderr_offset: u64,
        /// Bytes of input that were taken so far.
        stdin_offset: u64,
        /// The input is closed.
        stdin_closed: bool,
    }

    /// Of [`EXEC_LOGS`].
    ExecLogs {
        /// Which.
        exec_id: String,
        /// Bytes of standard output that are known already.
        stdout_offset: u64,
        /// Bytes of standard error that are known already.
        stderr_offset: u64,
        /// Goes on until the command ends; else ends with what is kept now.
        follow: bool,
    }

    /// Beside the session of [`EXEC_LOGS`]: where its output begins.
    ExecLogsAt {
        /// Offset of the first byte of standard output that comes.
        stdout_offset: u64,
        /// Offset of the first byte of standard error that comes.
        stderr_offset: u64,
    }

    /// A command that the agent knows.
    ExecInfo {
        /// Which.
        exec_id: String,
        /// Process id inside the sandbox, while it runs.
        pid: Option<u32>,
        /// When it started, in milliseconds since the Unix epoch.
        started_at_ms: u64,
        /// How it ended; none while it runs.
        exit: Option<ExecExit>,
        /// Bytes of standard output so far.
        stdout_bytes: u64,
        /// Bytes of standard error so far.
        stderr_bytes: u64,
        /// Whether it runs on without a client.
        detached: bool,
    }

    /// Of [`EXEC_LIST`].
    ExecList {
        /// The commands, oldest first.
        execs: Vec<ExecInfo>,
    }

    /// Of [`EXEC_WAIT`].
    ExecWait {
        /// Which.
        exec_id: String,
        /// The longest wait in seconds; none: until it ends.
        timeout_s: Option<f64>,
    }

    /// Of [`EXEC_WAIT`].
    ExecWaited {
        /// How it ended; none when it still runs.
        exit: Option<ExecExit>,
    }

    /// Of [`EXEC_SIGNAL`].
    ExecSignal {
        /// Which.
        exec_id: String,
        /// The signal number.
        signal: i32,
        /// To the whole process tree, not only to the process group. With SIGKILL also to what a command that is over
        /// left in the background, and then the answer comes when that is gone.
        tree: bool,
    }

    /// Of [`PTY_CREATE`].
    PtyCreate {
        /// Chosen by the caller, so that a repeated request opens nothing twice; empty: the agent chooses.
        session_id: String,
        /// What to open.
        spec: SandboxPtySpec,
    }

    /// Of [`PTY_ATTACH`].
    PtyAttachRequest {
        /// Which.
        session_id: String,
        /// Takeover and replay.
        options: AttachOptions,
    }

    /// A terminal that the agent knows.
    PtyInfo {
        /// Which.
        session_id: String,
        /// Process id inside the sandbox, while it runs.
        pid: Option<u32>,
        /// Whether a client holds it.
        attached: bool,
        /// Bytes of output so far: what `since` of an attach counts.
        output_bytes: u64,
        /// How it ended; none while it runs.
        exit: Option<ExecExit>,
    }

    /// Of [`PTY_LIST`].
    PtyList {
        /// The terminals, oldest first.
        sessions: Vec<PtyInfo>,
    }

    /// Of methods about one path.
    FilePath {
        /// Absolute, or relative to the workdir.
        path: ByteString,
    }

    /// Of [`FILE_READ`].
    FileRead {
        /// Absolute, or relative to the workdir.
        path: ByteString,
        /// Which part.
        range: ReadRange,
    }

    /// Of [`FILE_WRITE`].
    FileWrite {
        /// Absolute, or relative to the workdir.
        path: ByteString,
        /// Mode and owner.
        options: WriteOptions,
    }

    /// How much was taken.
    BytesMoved {
        /// Bytes of the body.
        bytes: u64,
    }

    /// Of [`FILE_LIST`].
    FileList {
        /// Sorted by name.
        entries: Vec<DirEntry>,
    }

    /// Of [`FILE_REMOVE`].
    FileRemove {
        /// Absolute, or relative to the workdir.
        path: ByteString,
        /// A folder with everything in it.
        recursive: bool,
    }

    /// Of [`FILE_MAKE_DIR`].
    MakeDir {
        /// Absolute, or relative to the workdir.
        path: ByteString,
        /// Owner of what is made, where [`FEATURE_MAKE_DIR_OWNER`] is announced; none: the sandbox's user.
        owner: Option<String>,
    }

    /// Of [`FILE_TAR_IN`].
    TarIn {
        /// The folder to unpack in; made if absent.
        path: ByteString,
        /// Owner of everything; none: the sandbox's user.
        owner: Option<String>,
    }

    /// Of [`PORT_OPEN`].
    PortOpen {
        /// The port.
        port: u16,
        /// The address inside; none: loopback.
        host: Option<String>,
    }

    /// Of [`FILE_WRITE_FD`]. The file is the descriptor's, from its first byte to its end.
    FileWriteFd {
        /// Absolute, or relative to the workdir.
        path: ByteString,
        /// Mode and owner.
        options: WriteOptions,
        /// The number that the descriptor has on this connection.
        descriptor: u64,
    }

    /// Of [`FILE_READ_FD`]. What is read is written to the descriptor from its first byte on.
    FileReadFd {
        /// Absolute, or relative to the workdir.
        path: ByteString,
        /// Which part.
        range: ReadRange,
        /// The number that the descriptor has on this connection.
        descriptor: u64,
    }

    /// Of [`FILE_READ_FD`].
    FileReadFdDone {
        /// What the file was when it was opened.
        stat: Option<FileStat>,
        /// Bytes that were written to the descriptor.
        bytes: u64,
    }

    /// An object of an HTTP server that is reached by a unix socket inside, which carries plain bytes.
    HttpPlace {
        /// The socket, an absolute path.
        socket: ByteString,
        /// What the server is called.
        host: String,
        /// What is asked for: a path and its query, which may be all the right that there is.
        target: Secret,
    }

    /// Of [`FILE_HTTP_GET`].
    FileHttpGet {
        /// Absolute, or relative to the workdir.
        path: ByteString,
        /// Mode and owner.
        options: WriteOptions,
        /// Where it comes from.
        from: HttpPlace,
        /// How many bytes it has.
        size: u64,
    }

    /// Of [`FILE_HTTP_PUT`].
    FileHttpPut {
        /// Absolute, or relative to the workdir.
        path: ByteString,
        /// Where it goes.
        to: HttpPlace,
        /// More than so many bytes are not sent.
        size_max: u64,
    }

    /// Of [`FILE_HTTP_PUT`].
    FileHttpPutDone {
        /// What the file was when it was opened; so many bytes were sent.
        stat: Option<FileStat>,
    }

    /// Of [`PORT_LISTEN`].
    PortListen {
        /// The port; 0: one that is free.
        port: u16,
        /// The address inside; none: loopback.
        host: Option<String>,
        /// An address and port that the agent itself connects each connection with (`10.0.0.2:80`, `[::1]:80`); none:
        /// the client takes them by [`PORT_ACCEPT`].
        target: Option<String>,
    }

    /// Of [`UNIX_LISTEN`].
    UnixListen {
        /// Absolute, or relative to the workdir. Nothing may be there.
        path: ByteString,
        /// Permission bits; none: 0o600.
        mode: Option<u32>,
    }

    /// Beside the session of [`PORT_LISTEN`] and [`UNIX_LISTEN`]: it listens now.
    PortListening {
        /// The port; none for a unix socket.
        port: Option<u16>,
    }

    /// Of [`PORT_ACCEPT`].
    PortAccept {
        /// Which, from [`ListenEvent::Incoming`](crate::ListenEvent::Incoming).
        connection: u64,
    }

    /// Of [`TTL_RENEW`].
    TtlRenew {
        /// Seconds from now.
        ttl_s: f64,
    }

    /// Of [`TTL_RENEW`].
    TtlRenewed {
        /// In milliseconds since the Unix epoch.
        expires_at_ms: u64,
    }

    /// Of [`INFO`].
    AgentInfo {
        /// Which incarnation of the sandbox this is: a handle of another one is stale.
        incarnation: String,
        /// When the agent started, in milliseconds since the Unix epoch.
        started_at_ms: u64,
        /// When it ends by itself, if it does.
        expires_at_ms: Option<u64>,
        /// `x86_64`, `aarch64`, ….
        arch: String,
        /// Process id of the agent inside.
        pid: u32,
        /// Commands that run.
        execs: u32,
        /// Terminals that are open.
        sessions: u32,
        /// The sandbox's own main process, if it has one.
        entrypoint: Option<EntrypointInfo>,
    }

    /// The main process of a sandbox.
    EntrypointInfo {
        /// Its id as a command: [`ENTRYPOINT_ID`].
        exec_id: String,
        /// It is being started, or runs.
        running: bool,
        /// Process id inside, while it runs.
        pid: Option<u32>,
        /// How it ended; a start that failed is an end.
        exit: Option<ExecExit>,
        /// Why it is over without an exit.
        error: Option<String>,
    }

    /// Of [`HOSTS_SET`].
    HostsSet {
        /// Name → address. Replaces what an earlier call set.
        hosts: BTreeMap<String, String>,
    }

    /// Of [`SHUTDOWN`].
    Shutdown {
        /// Seconds between SIGTERM and SIGKILL.
        grace_s: f64,
    }
}
