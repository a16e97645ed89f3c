//! A command of the contract as an order for a daemon.

use sandbox_core::{ByteString, ExecCommand, ExecRequest, Result, SandboxError, StdinSource};
use sandbox_process::User;
use serde_json::{Map, Value, json};

use crate::{daemon::Kind, error::NAME, state::State};

/// A script that is longer goes into a file: the daemon gives it to a shell as one argument.
const SCRIPT_BYTES: usize = 96 * 1024;

/// How long a daemon of ours may hold the first events back, to send them as one piece: the server has the same work with
/// each of them, and takes longer for a request than that.
const GATHER_MS: u64 = 10;

/// What is in front of the name of a variable that carries bytes as text.
pub(crate) const ENCODED_PREFIX: &str = "SANDBOX_BYTES_";

/// Everything that is to be sent for one command.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) body: Value,
    /// Files that must be there first; they are removed afterwards.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// What standard error begins with when a program was not started, up to the reason.
    pub(crate) marker: Option<String>,
    /// What is named where nothing could be started.
    pub(crate) program: String,
    /// Where standard error goes, for a command in the background.
    pub(crate) stderr_path: Option<String>,
}

/// What an order is made of, beside the request.
pub(crate) struct Surroundings<'a> {
    pub(crate) state: &'a State,
    pub(crate) kind: Kind,
    pub(crate) user: Option<&'a User>,
    /// Unique in the sandbox; for names of files.
    pub(crate) token: &'a str,
    pub(crate) is_background: bool,
    pub(crate) is_through_server: bool,
    /// The working directory.
    pub(crate) cwd: Option<&'a str>,
}

/// Text for a shell that means exactly itself.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Bytes as a format of printf, with a mark at the end that keeps line ends.
pub(crate) fn printf_format(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 4 + 1);
    for byte in bytes {
        if byte.is_ascii_alphanumeric() {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "\\{byte:03o}");
        }
    }
    text.push('_');
    text
}

/// A line that turns a variable that carries bytes into the one that was meant.
fn decode(name: &str, export: bool) -> String {
    let export = if export { format!("export {name};") } else { String::new() };
    format!("{name}=$(printf \"${ENCODED_PREFIX}{name}\");{name}=${{{name}%_}};{export}unset {ENCODED_PREFIX}{name};")
}

struct Builder<'a> {
    given: &'a Surroundings<'a>,
    envs: Map<String, Value>,
    /// What the shell does first.
    preamble: String,
    files: Vec<(String, Vec<u8>)>,
    body: Map<String, Value>,
    stderr_path: Option<String>,
}

impl Order {
    /// Makes an order of a request.
    pub(crate) fn new(request: &ExecRequest, given: &Surroundings<'_>) -> Result<Self> {
        let mut builder = Builder {
            given,
            envs: Map::new(),
            preamble: String::new(),
            files: Vec::new(),
            body: Map::new(),
            stderr_path: None,
        };
        builder.environment(request);
        builder.surroundings(request)?;
        let (program, marker) = match &request.command {
            ExecCommand::Shell { script, shell } => (builder.script(script, shell.as_deref())?, None),
            ExecCommand::Argv(argv) => builder.argv(argv)?,
            _ => return Err(SandboxError::invalid_input("command", "this form is not known").with_provider(NAME)),
        };
        let Builder { mut body, envs, files, stderr_path, .. } = builder;
        if !envs.is_empty() {
            body.insert("envs".to_owned(), Value::Object(envs));
        }
        Ok(Self { body: Value::Object(body), files, marker, program, stderr_path })
    }
}

impl Builder<'_> {
    fn environment(&mut self, request: &ExecRequest) {
        let state = self.given.state;
        for name in state.blanked.iter().filter(|name| request.env.get(name).is_none()) {
            self.envs.insert(name.clone(), json!(""));
        }
        // A daemon of ours has put them right already.
        let encoded = state.encoded.iter().filter(|_| !self.given.kind.native);
        for name in encoded.filter(|name| request.env.get(name).is_none()) {
            self.preamble += &decode(name, true);
        }
        if let Some(user) = self.given.user {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            if !state.has_home {
                self.envs.insert("HOME".to_owned(), json!(text(&user.home)));
            }
            if let Some(name) = &user.name {
                self.envs.insert("USER".to_owned(), json!(text(name)));
                self.envs.insert("LOGNAME".to_owned(), json!(text(name)));
            }
        }
        for (name, value) in request.env.iter() {
            match value.as_str() {
                Some(text) => drop(self.envs.insert(name.to_owned(), json!(text))),
                None => {
                    self.envs.insert(format!("{ENCODED_PREFIX}{name}"), json!(printf_format(value.as_bytes())));
                    self.preamble += &decode(name, true);
                }
            }
        }
    }

    fn surroundings(&mut self, request: &ExecRequest) -> Result<()> {
        if let Some(cwd) = self.given.cwd {
            if cwd.contains('$') {
                // The daemon would put variables in their place.
                self.preamble += &format!("cd -- {} || exit;", quote(cwd));
            } else {
                self.body.insert("cwd".to_owned(), json!(cwd));
            }
        }
        if let Some(user) = self.given.user {
            self.body.insert("uid".to_owned(), json!(user.uid));
            self.body.insert("gid".to_owned(), json!(user.gid));
        }
        if self.given.kind.extensions {
            self.body.insert("bytes".to_owned(), json!(true));
            if self.given.is_through_server {
                self.body.insert("gather_ms".to_owned(), json!(GATHER_MS));
            }
        }
        if let Some(timeout) = request.timeout().filter(|_| request.kill_grace_s == 0.0) {
            let ms = u64::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
            self.body.insert("timeout".to_owned(), json!(ms));
        }
        match &request.stdin {
            StdinSource::Bytes(bytes) => {
                let path = self.path("in");
                self.files.push((path.clone(), bytes.to_vec()));
                if self.given.kind.extensions {
                    self.body.insert("stdin_path".to_owned(), json!(path));
                } else {
                    self.preamble += &format!("exec <{path};");
                }
            }
            StdinSource::Null => {}
            _ => {
                let why = "the daemon inside gives commands no input while they run";
                return Err(SandboxError::unsupported_field(NAME, "exec.stdin_stream", why));
            }
        }
        if self.given.is_background {
            self.body.insert("background".to_owned(), json!(true));
            let path = self.path("err");
            self.preamble += &format!("exec 2>{path};");
            self.stderr_path = Some(path);
        }
        Ok(())
    }

    fn path(&self, what: &str) -> String {
        format!("/tmp/.sandbox-{}.{what}", self.given.token)
    }

    /// A script in a file, and the line that reads it.
    fn in_a_file(&mut self, script: &ByteString) -> String {
        let path = self.path("sh");
        self.files.push((path.clone(), script.as_bytes().to_vec()));
        format!(". {path}")
    }

    fn script(&mut self, script: &ByteString, shell: Option<&str>) -> Result<String> {
        let text = match script.as_str() {
            Some(text) if text.len() + self.preamble.len() <= SCRIPT_BYTES => text.to_owned(),
            _ => self.in_a_file(script),
        };
        match shell {
            None => {
                // A script begins on a line of its own, so that what is in front changes nothing in it.
                let command = if self.preamble.is_empty() { text } else { format!("{}\n{text}", self.preamble) };
                // An empty command is refused by the daemon.
                let command = if command.trim().is_empty() { ":".to_owned() } else { command };
                self.body.insert("command".to_owned(), json!(command));
                Ok("sh".to_owned())
            }
            Some(shell) => {
                let argv = [shell, "-c", &text].map(ByteString::from);
                self.argv(&argv).map(|(program, _)| program)
            }
        }
    }

    /// Gives the program, and the marker where the shell looks for it.
    fn argv(&mut self, argv: &[ByteString]) -> Result<(String, Option<String>)> {
        let program = argv[0].to_text_lossy().escape_debug().to_string();
        let is_text = argv.iter().all(|argument| argument.as_str().is_some());
        let is_plain = self.given.kind.argv && self.preamble.is_empty() && is_text;
        if is_plain {
            let words: Vec<&str> = argv.iter().filter_map(ByteString::as_str).collect();
            self.body.insert("argv".to_owned(), json!(words));
            return Ok((program, None));
        }
        let mut words = Vec::new();
        for (index, argument) in argv.iter().enumerate() {
            match argument.as_str() {
                Some(text) => words.push(quote(text)),
                None => {
                    let name = format!("SANDBOX_ARGUMENT_{index}");
                    self.envs.insert(format!("{ENCODED_PREFIX}{name}"), json!(printf_format(argument.as_bytes())));
                    self.preamble += &decode(&name, false);
                    words.push(format!("\"${name}\""));
                }
            }
        }
        let marker = format!("sandbox-{}:", self.given.token);
        let check = format!(
            "set -- {};case $1 in */*) [ -e \"$1\" ] || {{ printf {marker}not_found >&2;exit 127; }};\
             [ -f \"$1\" ] && [ -x \"$1\" ] || {{ printf {marker}not_executable >&2;exit 126; }};;\
             *) command -v -- \"$1\" >/dev/null 2>&1 || {{ printf {marker}not_found >&2;exit 127; }};;esac;exec \"$@\"",
            words.join(" ")
        );
        let command = format!("{}{check}", self.preamble);
        let command = match command.len() > SCRIPT_BYTES {
            true => self.in_a_file(&ByteString::from(command)),
            false => command,
        };
        self.body.insert("command".to_owned(), json!(command));
        Ok((program, Some(marker)))
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ExecRequest, StdinSource};
    use serde_json::json;

    use super::{Order, Surroundings, printf_format, quote};
    use crate::{
        daemon::{Dialect, Kind},
        state::State,
    };

    fn given(state: &State, kind: Kind) -> Surroundings<'_> {
        let (is_background, is_through_server) = (false, false);
        Surroundings { state, kind, user: None, token: "t", is_background, is_through_server, cwd: None }
    }

    fn order(request: &ExecRequest, extensions: bool) -> Order {
        let kind = Kind { extensions, native: false, argv: extensions, dialect: Dialect::Exact };
        let state = State { blanked: vec!["BASH_ENV".to_owned()], ..State::default() };
        let given = Surroundings { cwd: Some("/w"), ..given(&state, kind) };
        Order::new(request, &given).unwrap()
    }

    #[test]
    fn a_plain_script_is_sent_as_it_is() {
        let sent = order(&ExecRequest::shell("echo a # b").with_timeout_s(1.5), false).body;
        assert_eq!(sent, json!({"command": "echo a # b", "cwd": "/w", "timeout": 1500, "envs": {"BASH_ENV": ""}}));
        let sent = order(&ExecRequest::shell(" ").with_env("BASH_ENV", "/f"), false).body;
        assert_eq!((&sent["command"], &sent["envs"]), (&json!(":"), &json!({"BASH_ENV": "/f"})));
    }

    #[test]
    fn arguments_are_sent_as_they_are_where_the_daemon_takes_them_and_quoted_elsewhere() {
        let request = ExecRequest::argv(["a'b", "$x"]);
        assert_eq!(order(&request, true).body["argv"], json!(["a'b", "$x"]));
        let quoted = order(&request, false);
        let command = quoted.body["command"].as_str().unwrap();
        assert!(command.starts_with("set -- 'a'\\''b' '$x';") && command.ends_with("exec \"$@\""), "{command}");
        assert_eq!(quoted.marker.as_deref(), Some("sandbox-t:"));
        assert_eq!(quote("it's"), "'it'\\''s'");
    }

    #[test]
    fn only_a_daemon_of_ours_behind_the_server_is_asked_to_gather_events() {
        for (extensions, is_through_server) in [(false, false), (false, true), (true, false), (true, true)] {
            let kind = Kind { extensions, native: false, argv: true, dialect: Dialect::Exact };
            let state = State::default();
            let given = Surroundings { is_through_server, ..given(&state, kind) };
            let body = Order::new(&ExecRequest::shell("true"), &given).unwrap().body;
            assert_eq!(body.get("gather_ms").is_some(), extensions && is_through_server, "{body}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_travel_as_a_format() {
        assert_eq!(printf_format(b"x\xff%\n"), "x\\377\\045\\012_");
        let sent = order(&ExecRequest::shell("env").with_env("A", &b"x\xff"[..]), true).body;
        assert_eq!(sent["envs"]["SANDBOX_BYTES_A"], json!("x\\377_"));
        assert!(sent["command"].as_str().unwrap().contains("export A;unset SANDBOX_BYTES_A;\nenv"));
    }

    #[test]
    fn long_scripts_and_input_go_through_files_and_streams_are_refused() {
        let long = order(&ExecRequest::shell("x".repeat(200_000)).with_stdin_bytes("in"), false);
        let names: Vec<&str> = long.files.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(names, ["/tmp/.sandbox-t.in", "/tmp/.sandbox-t.sh"]);
        assert_eq!(long.body["command"], json!("exec </tmp/.sandbox-t.in;\n. /tmp/.sandbox-t.sh"));
        let kind = Kind { extensions: true, native: false, argv: true, dialect: Dialect::Exact };
        let state = State::default();
        let given = given(&state, kind);
        let stream = ExecRequest::shell("cat").with_stdin(StdinSource::Stream);
        let error = Order::new(&stream, &given).unwrap_err();
        assert_eq!(error.field(), Some("exec.stdin_stream"));
    }
}
