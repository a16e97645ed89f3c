//! From the command line to the end.

use std::{fs::File, io::Read, path::Path, sync::Arc};

use sandbox_core::{ByteString, Env, Secret};
use sandbox_protocol::ServerOptions;
use tokio::task::JoinHandle;

use super::{
    agent::{Agent, METHODS},
    arguments::{ConfigSource, ServeArguments, TokenSource},
    config::ServeConfig,
    connections::{self, Peers, Source},
    early::Early,
    entrypoint,
    local::LocalAgent,
    sys,
};

/// Serves until the sandbox is over. The process must have one thread; nothing of it outlives this call.
///
/// Ends everything on SIGTERM and SIGINT; an entrypoint gets them first. Returns the exit code: the entrypoint's, if the
/// sandbox ended with it, else 0.
///
/// # Errors
/// One line that says what could not be read, opened or put in force.
pub fn run(arguments: &ServeArguments) -> Result<u8, String> {
    let early = Early::bare()?;
    let token = arguments.token.as_ref().map(read_token).transpose()?;
    let unopened = |error: std::io::Error| format!("the endpoint could not be opened: {error}");
    // A configuration may be long in coming: who is quick can wait where this listens.
    let bound = connections::bind_early(&arguments.endpoint).map_err(unopened)?;
    let config = read_config(&arguments.config)?;
    let peers = Peers::of(&config);
    let open = || Ok((Source::open(&arguments.endpoint, bound, peers).map_err(unopened)?, None));
    serve(config, early, token, open)
}

/// Serves clients that `front` lets in, and `front` beside them until the sandbox is over. Otherwise as [`run`], which says what the process must be.
///
/// # Errors
/// As [`run`].
pub fn run_behind<F>(config: ServeConfig, front: impl FnOnce(LocalAgent) -> F) -> Result<u8, String>
where
    F: Future<Output = ()> + Send + 'static,
{
    let open = || {
        let (agent, source) = LocalAgent::new();
        Ok((source, Some(tokio::spawn(front(agent)))))
    };
    serve(config, Early::bare()?, None, open)
}

/// Where clients come from, and what is in front of it.
pub(super) type Opened = (Source, Option<JoinHandle<()>>);

/// `open` runs on the runtime.
pub(super) fn serve(
    mut config: ServeConfig,
    early: Early,
    token: Option<Token>,
    open: impl FnOnce() -> Result<Opened, String>,
) -> Result<u8, String> {
    let Early { runtime, processes, oom_score } = early;
    let is_ready = processes.is_some();
    if config.inherit_env {
        config.env = inherited_env().overridden_by(&config.env);
    }
    if config.inherit_workdir {
        use std::os::unix::ffi::OsStringExt;
        let own = std::env::current_dir().map_err(|error| format!("the working directory: {error}"))?;
        config.workdir = ByteString::new(own.into_os_string().into_vec());
    }
    let (token, digest) = match token {
        Some(Token::Sha256(digest)) => (config.token.take(), Some(digest)),
        Some(Token::Plain(token)) => (Some(token), None),
        None => (config.token.take(), None),
    };
    let mut options = ServerOptions::default().with_features(METHODS.iter().copied());
    options.window_bytes = config.window_bytes;
    let entered = runtime.enter();
    let signals = entrypoint::take_signals(&config).map_err(|error| format!("signals cannot be taken: {error}"))?;
    drop(entered);
    let agent = Arc::new(Agent::new(config, oom_score, processes).map_err(|error| error.to_string())?);
    options.token = token;
    options.token_sha256 = digest;
    let result = runtime.block_on(async {
        let (source, front) = open()?;
        tokio::spawn({
            let agent = agent.clone();
            async move { agent.tidy().await }
        });
        tokio::spawn(entrypoint::obey_signals(agent.clone(), signals));
        entrypoint::start(&agent)?;
        if !is_ready {
            // What the start alone needed is nothing for the processes that are forked from this one.
            sys::trim_memory();
        }
        // While the client comes; a failure is told by the first command.
        let _ = agent.processes.prepare();
        connections::run(source, options, &agent).await;
        if let Some(front) = front {
            // One that stays does not hold the end up.
            let _ = tokio::time::timeout(connections::LAST_WORDS, front).await;
        }
        Ok(agent.entrypoint.exit_code())
    });
    // A file system that hangs holds nobody.
    runtime.shutdown_background();
    result
}

/// What clients must show.
pub(super) enum Token {
    Plain(Secret),
    Sha256([u8; 32]),
}

/// What belongs to the agent's own user and place, not to those of commands.
const NOT_INHERITED: [&str; 8] = ["HOME", "USER", "LOGNAME", "PWD", "OLDPWD", "SHLVL", "TERM", "_"];

/// The environment of this process, for commands.
fn inherited_env() -> Env {
    use std::os::unix::ffi::OsStringExt;
    let all = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_vec())));
    all.filter(|(name, _)| !NOT_INHERITED.contains(&name.as_str())).collect()
}

fn read_token(source: &TokenSource) -> Result<Token, String> {
    let (token, shown) = match source {
        TokenSource::Sha256Variable(name) => {
            let text = sys::take_variable(name).and_then(|text| text.into_string().ok()).unwrap_or_default();
            let digest = sha256(text.as_bytes());
            return digest.map(Token::Sha256).ok_or_else(|| format!("the variable {name} holds no SHA-256"));
        }
        TokenSource::Variable(name) => {
            (sys::take_variable(name).and_then(|token| token.into_string().ok()), format!("the variable {name}"))
        }
        TokenSource::File(path) => {
            (String::from_utf8(take_file(path, "token")?).ok(), format!("the file {}", path.display()))
        }
    };
    let token = token.filter(|token| !token.is_empty());
    Ok(Token::Plain(Secret::new(token.ok_or_else(|| format!("{shown} holds no token"))?)))
}

/// 32 bytes in hexadecimal digits.
fn sha256(text: &[u8]) -> Option<[u8; 32]> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(digest)
}

/// Reads a file and removes it: nothing that runs later finds it.
fn take_file(path: &Path, what: &str) -> Result<Vec<u8>, String> {
    let text = std::fs::read(path).map_err(|error| format!("the {what} could not be read: {error}"))?;
    std::fs::remove_file(path).map_err(|error| format!("the file of the {what} could not be removed: {error}"))?;
    Ok(text)
}

fn read_config(source: &ConfigSource) -> Result<ServeConfig, String> {
    let text = match source {
        ConfigSource::Default => return Ok(ServeConfig::default()),
        ConfigSource::Text(text) => text.clone().into_bytes(),
        ConfigSource::File(path) => take_file(path, "configuration")?,
        ConfigSource::Fd(fd) => {
            let mut text = Vec::new();
            let read = sys::take_inherited(*fd).map_err(std::io::Error::from);
            read.and_then(|fd| File::from(fd).read_to_end(&mut text))
                .map_err(|error| format!("the configuration could not be read: {error}"))?;
            text
        }
        ConfigSource::Variable(name) => {
            use std::os::unix::ffi::OsStringExt;
            sys::take_variable(name).ok_or_else(|| format!("the variable {name} holds no configuration"))?.into_vec()
        }
    };
    ServeConfig::from_json(&text).map_err(|error| error.to_string())
}
